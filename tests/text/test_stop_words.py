from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.errors import InvalidRequestError
from pipeline.text.stop_words import StopWordScanner

LETTERS = st.text(alphabet="abc", max_size=40)
WORDS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4)


def reference(words: list[str], text: str) -> tuple[str, str | None]:
    """The match that ends first; the longest of those that end there."""
    for end in range(1, len(text) + 1):
        ending = [word for word in words if text[:end].endswith(word)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def scan(words: list[str], pieces: list[str]) -> tuple[str, str | None]:
    scanner = StopWordScanner(words)
    emitted = []
    for piece in pieces:
        emit, stopped = scanner.push(piece)
        emitted.append(emit)
        assert stopped == (scanner.matched is not None)
    return "".join(emitted) + scanner.flush(), scanner.matched


@given(words=WORDS, text=LETTERS, cuts=st.lists(st.integers(0, 40)))
@example(words=["abcab", "ca"], text="abcab", cuts=[])
@example(words=["b", "ab", "cab"], text="ccab", cuts=[1, 2, 3])
@example(words=["aab"], text="aaaab", cuts=[3])
@example(words=["abab", "baa"], text="abaabab", cuts=[4])
def test_same_as_the_reference_for_any_pieces(words: list[str], text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    expected = reference(words, text)
    assert scan(words, pieces) == scan(words, list(text)) == scan(words, [text]) == expected


@given(words=WORDS, text=LETTERS)
def test_holds_back_no_more_than_needed(words: list[str], text: str) -> None:
    scanner = StopWordScanner(words)
    emit, stopped = scanner.push(text)
    if not stopped:
        held = text[len(emit) :]
        beginnings = [word[:size] for word in words for size in range(1, len(word))]
        longest = max((part for part in beginnings if text.endswith(part)), key=len, default="")
        assert held == longest


def test_word_across_pushes() -> None:
    scanner = StopWordScanner(["\nUser:", "###"])
    assert scanner.push("Hello\nUs") == ("Hello", False)
    assert scanner.push("e") == ("", False)
    assert scanner.push("ful #") == ("\nUseful ", False)
    assert scanner.push("#!") == ("##!", False)
    assert scanner.push("ok\nUser: more") == ("ok", True)
    assert scanner.matched == "\nUser:"
    assert scanner.push("ignored") == ("", True)
    assert scanner.flush() == ""


def test_flush_gives_what_was_held() -> None:
    scanner = StopWordScanner(["stop"])
    assert scanner.push("do not sto") == ("do not ", False)
    assert scanner.flush() == "sto"
    assert scanner.flush() == ""


def test_no_words_hold_nothing() -> None:
    assert StopWordScanner([]).push("abc") == ("abc", False)


def test_empty_word_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="stop_words"):
        StopWordScanner(["a", ""])
