"""Token by token, EOS, stop words and length: whichever comes first ends the request, nothing behind it exists."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.orchestrator.answer import Answer

from .scripted import END, ByteTokenizer, ask, make_rig, run

K = 4
FIRST = 1  # position of the first draft: round 0 is plain
SCRIPT = b"abcdefghijklmnopqrstuvw"


def cut(tokens: Sequence[int], max_tokens: int, stop_words: Sequence[str]) -> tuple[str, list[int], str]:
    """The definition, one token at a time."""
    kept: list[int] = []
    for token in tokens:
        if token == END:
            return bytes(kept).decode("utf-8", "replace"), kept, "eos"
        kept.append(token)
        text = bytes(kept).decode("utf-8", "replace")
        found = [text.index(word) for word in stop_words if word in text]
        if found:
            return text[: min(found)], kept, "stop"
        if len(kept) == max_tokens:
            return text, kept, "length"
    raise AssertionError("the script is too short")


def with_end(position: int | None) -> list[int]:
    tokens = [*SCRIPT, *b"." * 40]
    return tokens if position is None else [*tokens[:position], END, *tokens[position + 1 :]]


@pytest.mark.parametrize("right", range(K + 1))
@pytest.mark.parametrize("stream", [True, False])
def test_every_end_at_every_place_of_a_block(right: int, stream: bool) -> None:
    """An accepted draft, the correction and the bonus may each bring EOS or complete a stop word, or both do."""
    places = [None, *range(FIRST, FIRST + right + 1)]
    for end, stop in itertools.product(places, places):
        words = () if stop is None else (chr(SCRIPT[stop - 1]) + chr(SCRIPT[stop]),)
        tokens = with_end(end)
        rig = make_rig(tokens, k=K, right=lambda index: right)
        outcome = run(rig, ask(max_tokens=18, stop_words=words, stream=stream, exclude_input_in_output=True))
        text, ids, reason = cut(tokens, 18, words)
        assert (outcome.text, outcome.token_ids, outcome.reason) == (text, ids, reason), (end, stop)
        if end is not None or stop is not None:
            assert rig.verified == [0, K], "the block in which the request ends is the last one"
            committed = len(ids) - FIRST
            assert outcome.statistics.num_accepted_draft_tokens == min(right, committed)
            assert outcome.statistics.acceptance_histogram[min(right, committed)] == 1


@pytest.mark.parametrize("max_tokens", range(1, 13))
@pytest.mark.parametrize("right", [0, 2, K])
def test_length_ends_exactly(max_tokens: int, right: int) -> None:
    """Not a token more or less than max_tokens, wherever the last block begins."""
    outcome = run(make_rig(SCRIPT, k=K, right=lambda index: right), ask(max_tokens=max_tokens))
    assert (outcome.text, outcome.reason) == (SCRIPT[:max_tokens].decode(), "length")


@pytest.mark.parametrize("stop_at", [None, *range(5)])
@pytest.mark.parametrize("ended", [False, True])
def test_length_inside_a_block(stop_at: int | None, ended: bool) -> None:
    """An answer cuts a block that is longer than what remains, at every index, before an EOS behind it."""
    for max_tokens, accepted in itertools.product(range(1, 6), range(5)):
        words = () if stop_at is None else (chr(SCRIPT[stop_at]),)
        answer = Answer(ByteTokenizer(), max_tokens, words)  # type: ignore[arg-type]
        committed = answer.commit(SCRIPT[:5], accepted, ended)
        tokens = [*SCRIPT[:5], END] if ended else [*SCRIPT[:5]]
        text, ids, reason = cut(tokens, max_tokens, words)
        assert list(committed.token_ids) == ids
        assert committed.accepted_text + committed.other_text == text
        assert committed.finish_reason == reason
        assert committed.accepted == min(accepted, len(ids))
        assert answer.token_count == len(ids)
        assert committed.accepted_text == text[: committed.accepted] or reason == "stop"


def test_an_eos_as_the_first_token() -> None:
    """An empty answer is one chunk without tokens."""
    outcome = run(make_rig([END]))
    assert (outcome.text, outcome.token_ids, outcome.reason, outcome.statistics.rounds) == ("", [], "eos", 1)


def test_an_own_end_id() -> None:
    """end_id of the request replaces the model's."""
    outcome = run(make_rig(SCRIPT), ask(end_id=ord("h")))
    assert (outcome.text, outcome.reason) == ("abcdefg", "eos")
    outcome = run(make_rig(with_end(3)), ask(end_id=ord("h")))
    assert (outcome.text, outcome.reason) == ("abcefg", "eos")


@pytest.mark.parametrize("k", range(1, 6))
def test_stop_words_across_rounds(k: int) -> None:
    """A stop word that begins in one round and ends in another is cut whole, though its beginning was held back."""
    for start, length in itertools.product(range(1, 8), (2, 5, 9)):
        word = SCRIPT[start : start + length].decode()
        outcome = run(make_rig(SCRIPT, k=k, right=lambda index: index % 3), ask(stop_words=("zz", word)))
        assert (outcome.text, outcome.reason) == (SCRIPT[:start].decode(), "stop")
        assert len(outcome.token_ids) == start + length


def test_what_was_held_back_comes_out_at_the_end() -> None:
    """The beginning of a stop word that never came belongs to the text."""
    for end in (3, 4, 5):
        outcome = run(make_rig(with_end(end)), ask(stop_words=("bcdefgX",)))
        assert (outcome.text, outcome.reason) == (SCRIPT[:end].decode(), "eos")


def test_a_stop_word_in_what_the_decoder_held_back() -> None:
    """A broken character becomes text only at the end; a stop word in it still stops."""
    tokens = [*b"ab", 0xC3, END]
    outcome = run(make_rig(tokens), ask(stop_words=("b\N{REPLACEMENT CHARACTER}",)))
    assert (outcome.text, outcome.reason) == ("a", "stop")


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    text=st.text(st.sampled_from("abé😀 "), min_size=1, max_size=14),
    end=st.integers(0, 30),
    stop_words=st.lists(st.text(st.sampled_from("abé😀 "), min_size=1, max_size=3), max_size=2),
    max_tokens=st.integers(1, 24),
    k=st.integers(0, 6),
    right=st.lists(st.integers(0, 6), min_size=1, max_size=5),
)
def test_any_text_streamed_or_not(
    text: str, end: int, stop_words: list[str], max_tokens: int, k: int, right: list[int]
) -> None:
    """Characters of several tokens, stop words, EOS: the stream joined is the text at once is the definition."""
    tokens = [*text.encode(), *b"." * 40]
    tokens[end:end] = [END]
    expected = cut(tokens, max_tokens, stop_words)
    texts = []
    for stream in (True, False):
        rig = make_rig(tokens, k=k, right=lambda index: right[index % len(right)])
        request = ask(max_tokens=max_tokens, stop_words=tuple(stop_words), stream=stream, exclude_input_in_output=True)
        outcome = run(rig, request)
        texts.append(outcome.text)
        assert (outcome.text, outcome.token_ids, outcome.reason) == expected
    assert texts[0] == texts[1]
