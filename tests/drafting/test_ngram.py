"""N-gram look-up against its definition by brute force."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.drafting.base import DraftContext
from pipeline.drafting.ngram import NgramDrafter, NgramSession
from pipeline.sampling.params import GREEDY

TEXTS = st.lists(st.integers(0, 3), max_size=40)
LENGTHS = st.tuples(st.integers(1, 4), st.integers(0, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def common_suffix(text: Sequence[int], end: int, most: int) -> int:
    """How many tokens before `end` equal the last ones of the text."""
    length = 0
    while length < most and length < end and text[end - 1 - length] == text[-1 - length]:
        length += 1
    return length


def best_match(text: Sequence[int], shortest: int, longest: int, candidates: int) -> tuple[int, int] | None:
    """(length, end) by the definition: of the most recent places that match, the longest, the most recent of those."""
    found = [(common_suffix(text, end, longest), end) for end in range(shortest, len(text))]
    recent = [(length, end) for length, end in found if length >= shortest][-candidates:]
    return max(recent, default=None)


def continuation(text: Sequence[int], end: int, k: int) -> list[int]:
    """What follows `end`, the draft itself being the text that goes on."""
    whole = list(text)
    for i in range(k):
        whole.append(whole[end + i])
    return whole[len(text) :]


def check(session: NgramSession, text: Sequence[int], lengths: tuple[int, int], k: int) -> None:
    expected = best_match(text, *lengths, NgramSession.CANDIDATES)
    offers = session.offers(k)
    if expected is None:
        assert offers == ()
        return
    (offer,) = offers
    assert (offer.source, offer.key, offer.max_k) == ("ngram", f"ngram-{expected[0]}", k)
    draft = session.propose(offer, k, 0)
    assert (draft.source, draft.logits) == ("ngram", None)
    assert list(draft.ids) == continuation(text, expected[1], k)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(text=TEXTS, lengths=LENGTHS, k=st.integers(1, 9))
def test_the_definition(text: list[int], lengths: tuple[int, int], k: int) -> None:
    """The longest match up to max_match among the most recent candidates, the most recent on ties; its
    continuation, wrapped where it reaches the end."""
    check(NgramSession(text, *lengths), text, lengths, k)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(pieces=st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=8), lengths=LENGTHS)
def test_text_in_pieces(pieces: list[list[int]], lengths: tuple[int, int]) -> None:
    """Extending in pieces, with offers in between, is the same as all at once."""
    session, text = NgramSession(pieces[0], *lengths), list(pieces[0])
    for piece in pieces[1:]:
        check(session, text, lengths, 3)
        session.extend(piece)
        text += piece
    check(session, text, lengths, 5)
    whole = NgramSession(text, *lengths)
    assert whole.offers(4) == session.offers(4)


def test_only_the_most_recent_places_are_compared() -> None:
    """A longer match further back than CANDIDATES is not looked for: an offer has a bounded cost."""
    text = [7, 1, 2, *[3, 1, 2] * NgramSession.CANDIDATES, 7, 1, 2]
    session = NgramSession(text, 2, 3)
    assert session.offers(1)[0].key == "ngram-2"
    del text[3:6]
    assert NgramSession(text, 2, 3).offers(1)[0].key == "ngram-3"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([1, 2, 3, 1, 2], [3, 1, 2, 3, 1]),  # period 3
        ([5, 5], [5, 5, 5, 5, 5]),  # period 1
        ([1, 2, 9, 1, 2, 8, 1, 2], [8, 1, 2, 8, 1]),  # the most recent
        ([4, 1, 2, 9, 3, 1, 2, 8, 4, 1, 2], [9, 3, 1, 2, 8]),  # the longest
    ],
)
def test_proposals(text: list[int], expected: list[int]) -> None:
    """By hand."""
    session = NgramSession(text, 1, 3)
    assert list(session.propose(session.offers(5)[0], 5, 0).ids) == expected


def test_no_offer() -> None:
    """Too short a text, nothing that matches, or no room."""
    assert NgramSession([], 2, 4).offers(3) == ()
    assert NgramSession([1, 1], 2, 4).offers(3) == ()
    assert NgramSession([1, 2, 3], 1, 4).offers(3) == ()
    assert NgramSession([1, 1, 1], 1, 4).offers(0) == ()


def test_a_drafter_starts_from_the_prompt() -> None:
    """The prompt is text like any other: answers often quote it."""
    session = NgramDrafter(2, 4).start(DraftContext("r", (1, 2, 3, 4), GREEDY, 0))
    assert session.offers(2) == ()
    session.extend((2, 3))
    assert session.propose(session.offers(2)[0], 2, 0).ids == (4, 2)
