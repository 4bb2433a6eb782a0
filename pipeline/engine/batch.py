"""A packed ragged batch: rows of different requests side by side, without padding."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.kv_cache.page_table import PageTable


@dataclass(frozen=True)
class Row:
    """New tokens of one call in one pass: a prefill chunk, a verify of K + 1 tokens, or one decoded token.

    Attributes:
        tokens: token ids to compute.
        start: position of the first one; everything before it is computed.
        table: where the row's KV lives.
        logits: how many of the last tokens need logits (0 for a prefill chunk that is not the last).
    """

    tokens: tuple[int, ...]
    start: int
    table: PageTable
    logits: int


@dataclass(frozen=True)
class PackedBatch:
    """Rows of one forward pass."""

    rows: tuple[Row, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)

    @property
    def num_logits(self) -> int:
        return sum(row.logits for row in self.rows)
