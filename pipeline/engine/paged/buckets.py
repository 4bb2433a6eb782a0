"""Sizes of a pass: exact ones, and the few that passes are padded to so that each needs one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pipeline.engine.batch import PackedBatch

# Weights are what a small pass reads, and tensor cores take rows by eight: padding within a step costs next to nothing.
TOKEN_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
MOST_TOKENS = TOKEN_SIZES[-1]
SHORTEST_WIDE = 16
"""Rows up to this many tokens use graphs, whatever a verify holds: a draft takes over several tokens at once."""
MAX_BUCKETS = 96
"""Graphs that an engine keeps; a size beyond them runs without."""

Fit = Callable[[int], int]


class Bucket(NamedTuple):
    """Sizes of a pass.

    Attributes:
        rows: requests.
        tokens: new tokens of all of them.
        widest: tokens of the longest row.
        blocks: KV blocks of the longest text.
        wanted: logits.
    """

    rows: int
    tokens: int
    widest: int
    blocks: int
    wanted: int

    @classmethod
    def of(cls, batch: PackedBatch, tokens_per_block: int) -> Bucket:
        """What a batch needs, without padding."""
        longest = max(row.start + len(row.tokens) for row in batch.rows)
        return cls(
            rows=len(batch.rows),
            tokens=batch.num_tokens,
            widest=max(len(row.tokens) for row in batch.rows),
            blocks=-(-longest // tokens_per_block),
            wanted=batch.num_logits,
        )


class Buckets:
    """Chooses what a pass is padded to.

    Args:
        widest: tokens of a row that uses a graph: longer ones are prefills.
        fit_blocks: rounds the number of blocks up to what attention has a graph for.
    """

    def __init__(self, widest: int, fit_blocks: Fit) -> None:
        self._widest = max(widest, SHORTEST_WIDE)
        self._fit_blocks = fit_blocks
        self.known: set[Bucket] = set()
        self._refused: set[Bucket] = set()

    def fit(self, need: Bucket) -> Bucket | None:
        """The smallest bucket that holds a pass; None for a prefill, and where there are too many buckets already."""
        if need.tokens > MOST_TOKENS or need.widest > self._widest or not need.wanted:
            return None
        tokens = fit_tokens(need.tokens)
        # Rows of one token each are plain decoding and drafting. They have kernels of their own: FlashAttention takes
        # token i to be row i's then, so that there must be as many rows as tokens, padding included.
        widest = 1 if need.widest == 1 else min(tokens, power_of_two(need.widest))
        bucket = Bucket(fit_tokens(need.rows), tokens, widest, self._fit_blocks(need.blocks), tokens)
        if bucket in self._refused:
            return None
        if bucket not in self.known:
            if len(self.known) >= MAX_BUCKETS:
                return None
            self.known.add(bucket)
        return bucket

    def refuse(self, bucket: Bucket) -> None:
        """There is no memory for its graph: such passes go without from now on."""
        self.known.discard(bucket)
        self._refused.add(bucket)


def fit_tokens(count: int) -> int:
    """The smallest of TOKEN_SIZES that holds `count`, at most MOST_TOKENS."""
    return next(size for size in TOKEN_SIZES if count <= size)


def power_of_two(count: int) -> int:
    """`count` rounded up."""
    return 1 << (count - 1).bit_length()
