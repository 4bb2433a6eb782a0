"""Ragged batches: rows side by side give what each gives alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import BLOCK, VOCAB, TinyModel, assert_close, compute, make_decoder, spoil_pool
from torch import Tensor

from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.decoder import Decoder
from pipeline.kv_cache.page_table import PageTable

BLOCKS = 24
MAX_LENGTH = 20


@dataclass(frozen=True)
class Part:
    """One row to be: a text, and where its new tokens begin (0: a prefill, length - 1: a decoded token)."""

    seed: int
    length: int
    start: int
    chunk: int  # what comes before was computed in chunks of this size

    @property
    def tokens(self) -> list[int]:
        return torch.randint(0, VOCAB, (self.length,), generator=torch.Generator().manual_seed(self.seed)).tolist()


def starts(length: int) -> st.SearchStrategy[int]:
    return st.sampled_from([0, length - 1]) | st.integers(0, length - 1)


PARTS = st.integers(1, MAX_LENGTH).flatmap(
    lambda n: st.builds(Part, st.integers(0, 99), st.just(n), starts(n), st.integers(1, 8))
)


def batched(decoder: Decoder, parts: list[Part], blocks: list[int]) -> list[Tensor]:
    """Logits of every part, the last pass shared by all; pages are dealt out from a shuffled pool."""
    spoil_pool(decoder)
    rows, pages = [], iter(blocks)
    for part in parts:
        table = PageTable(BLOCK, list(itertools.islice(pages, -(-part.length // BLOCK))))
        for start in range(0, part.start, part.chunk):
            compute(decoder, table, part.tokens[: min(start + part.chunk, part.start)], start, 0)
        rows.append(Row(tuple(part.tokens[part.start :]), part.start, table, part.length - part.start))
    with decoder.thread_context():
        logits = decoder.forward(PackedBatch(tuple(rows))).cpu()
    return list(logits.clone().split([row.logits for row in rows]))


def alone(decoder: Decoder, part: Part) -> Tensor:
    """The same logits from one pass over the whole text in pages side by side."""
    return compute(decoder, PageTable(BLOCK, list(range(BLOCKS))), part.tokens)[part.start :].clone()


def test_rows_side_by_side_equal_rows_alone(tiny: TinyModel, kind: str) -> None:
    """Prefill chunks, verifies and decoded tokens of several requests, in scattered pages, do not mix."""
    decoder, reference = make_decoder(tiny.folder, blocks=BLOCKS, kind=kind), make_decoder(tiny.folder, blocks=BLOCKS)

    @settings(derandomize=True, deadline=None, max_examples=80 if kind == "compiled" else 50)
    @example([Part(0, 12, 0, 1)], [0, 5, 2])
    @given(st.lists(PARTS, min_size=1, max_size=4), st.permutations(range(BLOCKS)))
    def rows_agree(parts: list[Part], blocks: list[int]) -> None:
        for found, part in zip(batched(decoder, parts, blocks), parts, strict=True):
            assert_close(found, alone(reference, part))

    rows_agree()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_bits_do_not_depend_on_the_batch(tiny: TinyModel, dtype: str) -> None:
    """The same bits alone, in a batch, in chunks, decoded or verified."""
    exact = make_decoder(tiny.folder, dtype, blocks=BLOCKS)

    @settings(derandomize=True, deadline=None, max_examples=40)
    @given(st.lists(PARTS, min_size=1, max_size=4), st.permutations(range(BLOCKS)))
    def bits_agree(parts: list[Part], blocks: list[int]) -> None:
        for found, part in zip(batched(exact, parts, blocks), parts, strict=True):
            assert torch.equal(found, alone(exact, part))

    bits_agree()
