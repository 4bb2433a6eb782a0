from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.text.stream import REPLACEMENT, IncrementalDecoder
from pipeline.text.tokenizer import Tokenizer

IDS = st.lists(st.integers(0, 10**6), max_size=60)
CUTS = st.lists(st.integers(0, 8), max_size=60)
BROKEN = st.lists(st.sampled_from([0x80, 0xC3, 0xE2, 0xF0, 0x9F, 0xA9, 0xFF, 0x41]), max_size=60)


def check(tokenizer: Tokenizer, ids: list[int], sizes: list[int]) -> None:
    decoder = IncrementalDecoder(tokenizer)
    pieces, rest = [], ids
    for size in sizes:
        pieces.append(decoder.push(rest[:size]))
        rest = rest[size:]
    pieces.append(decoder.push(rest))
    assert "".join(pieces) + decoder.flush() == tokenizer.decode(ids)
    assert decoder.flush() == ""


@given(ids=IDS, sizes=CUTS)
def test_pieces_are_the_whole_byte_level(byte_level_folder: Path, ids: list[int], sizes: list[int]) -> None:
    tokenizer = Tokenizer.load(byte_level_folder)
    # the remainder keeps most ids inside the vocabulary, some just beyond
    check(tokenizer, [number % (tokenizer.vocab_size + 3) for number in ids], sizes)


@given(values=BROKEN, sizes=CUTS)
@example(values=[0xF0, 0x9F] * 25, sizes=[])
@example(values=[0xE2] * 30, sizes=[7, 7])
@example(values=[0x80] * 30, sizes=[])
@example(values=[0xF0, 0x9F, 0x98, 0x80] * 8, sizes=[])
def test_pieces_are_the_whole_broken_bytes(
    byte_level_folder: Path, byte_fallback_folder: Path, values: list[int], sizes: list[int]
) -> None:
    check(Tokenizer.load(byte_fallback_folder), [3 + value for value in values], sizes)
    tokenizer = Tokenizer.load(byte_level_folder)
    alphabet = byte_alphabet(tokenizer)
    check(tokenizer, [alphabet[value] for value in values], sizes)


@given(ids=IDS, sizes=CUTS)
def test_pieces_are_the_whole_byte_fallback(byte_fallback_folder: Path, ids: list[int], sizes: list[int]) -> None:
    tokenizer = Tokenizer.load(byte_fallback_folder)
    after_bytes = tokenizer.vocab_size - 259
    ids = [259 + number % after_bytes if number % 3 else number % 259 for number in ids]
    check(tokenizer, ids, sizes)


@given(text=st.text(max_size=60))
def test_valid_text_never_shows_half_a_character(byte_level_folder: Path, text: str) -> None:
    tokenizer = Tokenizer.load(byte_level_folder)
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.push([number]) for number in tokenizer.encode(text)]
    assert REPLACEMENT in text or not any(REPLACEMENT in piece for piece in pieces)
    assert "".join(pieces) + decoder.flush() == text


def test_text_comes_with_its_token(byte_level_folder: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_folder)
    decoder = IncrementalDecoder(tokenizer)
    for number in tokenizer.encode("The quick brown fox"):
        assert decoder.push([number]) == tokenizer.decode([number])
    assert decoder.push([2]) == decoder.push([]) == decoder.flush() == ""


def test_leading_space_of_a_later_token_stays(byte_fallback_folder: Path) -> None:
    tokenizer = Tokenizer.load(byte_fallback_folder)
    a, end, space = (tokenizer.token_id(token) for token in ("▁a", "</s>", "▁"))
    assert a is not None and end is not None and space is not None
    decoder = IncrementalDecoder(tokenizer)
    assert [decoder.push([number]) for number in (a, end, a, space, a)] == ["a", "", " a", " ", " a"]


def test_cost_per_token_does_not_grow(byte_level_folder: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_folder)
    alphabet = byte_alphabet(tokenizer)
    for ids in (tokenizer.encode("The fox. ") * 4000, [alphabet[0xE2]] * 20_000):
        decoder = IncrementalDecoder(tokenizer)
        started = time.perf_counter()
        for number in ids:
            decoder.push([number])
        assert time.perf_counter() - started < 60  # quadratic cost would take many minutes
        assert len(decoder._window) < 32


@pytest.mark.demo
@given(ids=st.lists(st.integers(0, 49_151), max_size=80), sizes=CUTS)
def test_pieces_are_the_whole_demo(demo_folder: Path, ids: list[int], sizes: list[int]) -> None:
    global _demo
    _demo = _demo or Tokenizer.load(demo_folder)
    check(_demo, ids, sizes)


_demo: Tokenizer | None = None


def byte_alphabet(tokenizer: Tokenizer) -> dict[int, int]:
    """Byte -> id of its token, for a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {byte: chr(byte) for byte in printable}
    spelled |= {byte: chr(256 + number) for number, byte in enumerate(others)}
    found = {byte: tokenizer.token_id(token) for byte, token in spelled.items()}
    return {byte: number for byte, number in found.items() if number is not None}
