"""What a pass reads: one array of integers, copied to the device at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.engine.batch import PackedBatch
from pipeline.engine.paged.buckets import Bucket

Ints = npt.NDArray[np.int32]


def _sizes(bucket: Bucket) -> dict[str, int]:
    rows, tokens, widest, blocks, wanted = bucket
    return {
        "ids": tokens,
        "positions": tokens,
        "slots": tokens,
        "wanted": wanted,
        "place": tokens,
        "first": rows + 1,
        "ends": rows,
        "end_sums": rows + 1,
        "take": rows * widest,
        "table": rows * blocks,
    }


@dataclass(frozen=True, eq=False)
class PassInputs:
    """Views of the array, on the device.

    Attributes:
        bucket: sizes; what is beyond the batch is padding.
        flat: all of it, int32.
        row_tokens: tokens of each row where the host knows them and nothing is padded; None in a graph, whose rows
            change from one replay to the next.
        row_ends: likewise, tokens of each text with its new ones.
    """

    bucket: Bucket
    flat: Tensor
    row_tokens: tuple[int, ...] | None = None
    row_ends: tuple[int, ...] | None = None

    @classmethod
    def empty(cls, bucket: Bucket, device: torch.device) -> PassInputs:
        """Memory that passes of one bucket share."""
        return cls(bucket, torch.zeros(sum(_sizes(bucket).values()), dtype=torch.int32, device=device))

    @classmethod
    def exact(cls, batch: PackedBatch, bucket: Bucket, tokens_per_block: int, device: torch.device) -> PassInputs:
        """Inputs of one pass that is not padded."""
        flat = torch.from_numpy(pack_inputs(batch, bucket, tokens_per_block, 0)).to(device)
        return cls(
            bucket,
            flat,
            tuple(len(row.tokens) for row in batch.rows),
            tuple(row.start + len(row.tokens) for row in batch.rows),
        )

    def views(self) -> dict[str, Tensor]:
        """By name, int32: ids, positions, slots, place [tokens]; wanted [wanted]; first, end_sums [rows + 1]; ends
        [rows]; take [rows, widest]; table [rows, blocks]."""
        sizes = _sizes(self.bucket)
        found = dict(zip(sizes, torch.split(self.flat, list(sizes.values())), strict=True))
        found["take"] = found["take"].view(self.bucket.rows, self.bucket.widest)
        found["table"] = found["table"].view(self.bucket.rows, self.bucket.blocks)
        return found


def pack_inputs(batch: PackedBatch, bucket: Bucket, tokens_per_block: int, scratch: int) -> Ints:
    """Lay out a batch.

    Padding tokens belong to no row: they are token 0 at position 0, and their KV goes to the scratch block, which no
    page table holds but as the padding of a row's own. Padding rows have no tokens.

    Args:
        batch: fits the bucket.
        bucket: sizes.
        scratch: number of the block that padding is written to.

    Returns:
        int32, in the order of `PassInputs.views`.
    """
    sizes = _sizes(bucket)
    flat: Ints = np.zeros(sum(sizes.values()), np.int32)
    bounds = np.cumsum([0, *sizes.values()])
    part = {name: flat[bounds[i] : bounds[i + 1]] for i, name in enumerate(sizes)}
    take = part["take"].reshape(bucket.rows, bucket.widest)
    table = part["table"].reshape(bucket.rows, bucket.blocks)
    part["slots"][:] = scratch * tokens_per_block
    table[:] = scratch
    token = wanted = ends = 0
    for i, row in enumerate(batch.rows):
        count, end = len(row.tokens), row.start + len(row.tokens)
        new = slice(token, token + count)
        part["ids"][new] = row.tokens
        part["positions"][new] = np.arange(row.start, end)
        part["slots"][new] = row.table.slots(row.start, count)
        part["place"][new] = np.arange(i * bucket.widest, i * bucket.widest + count)
        take[i, :count] = np.arange(token, token + count)
        part["wanted"][wanted : wanted + row.logits] = np.arange(token + count - row.logits, token + count)
        blocks = row.table.blocks[: -(-end // tokens_per_block)]
        table[i, : len(blocks)] = blocks
        token, wanted, ends = token + count, wanted + row.logits, ends + end
        part["first"][i + 1], part["ends"][i], part["end_sums"][i + 1] = token, end, ends
    rows = len(batch.rows)
    part["first"][rows + 1 :] = token
    part["end_sums"][rows + 1 :] = ends
    return flat
