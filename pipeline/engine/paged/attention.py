"""Attention over a paged KV cache on a device: the interface, and the form that runs wherever torch does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.engine.paged.buckets import power_of_two
from pipeline.engine.paged.inputs import PassInputs


@dataclass(frozen=True, eq=False)
class Pass:
    """What attention reads of a pass, the same for every layer.

    Attributes:
        inputs: sizes, and what the host knows.
        views: of the inputs, int32.
        take, place, table: of the views, int64.
    """

    inputs: PassInputs
    views: dict[str, Tensor]
    take: Tensor
    place: Tensor
    table: Tensor


class PagedAttention(ABC):
    """Causal attention of each row's new tokens to its whole text; the new tokens' KV is in the pool already.

    Attributes:
        name: for reports.
    """

    name: str

    @abstractmethod
    def fit_blocks(self, blocks: int) -> int:
        """How many blocks the page tables of a graph hold, where a pass needs `blocks`."""

    @abstractmethod
    def run(self, query: Tensor, keys: Tensor, values: Tensor, of: Pass) -> Tensor:
        """Attend.

        Args:
            query: [tokens, heads, dim], in the pool's type.
            keys, values: [blocks, tokens_per_block, kv_heads, dim], of one layer.
            of: the pass.

        Returns:
            [tokens, heads, dim]; anything at all for padding tokens.
        """


class GatheredAttention(PagedAttention):
    """torch's scaled_dot_product_attention over blocks that are gathered first. Reads and writes the KV once more
    than a kernel that follows page tables.

    Args:
        max_blocks: of the longest text.
    """

    name = "gathered blocks"

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks

    def fit_blocks(self, blocks: int) -> int:
        return min(power_of_two(blocks), self._max_blocks)

    def run(self, query: Tensor, keys: Tensor, values: Tensor, of: Pass) -> Tensor:
        if of.inputs.row_tokens is None or of.inputs.row_ends is None:
            return self._padded(query, keys, values, of)
        out = torch.empty_like(query)
        first = 0
        for i, (count, end) in enumerate(zip(of.inputs.row_tokens, of.inputs.row_ends, strict=True)):
            blocks = of.table[i, : -(-end // keys.shape[1])]
            position = torch.arange(end, device=query.device)
            seen = position <= position[end - count :, None]  # [count, end]
            part = slice(first, first + count)
            k, v = keys[blocks].flatten(0, 1)[:end], values[blocks].flatten(0, 1)[:end]
            out[part] = _attend(query[part][None], k[None], v[None], seen[None])[0]
            first += count
        return out

    def _padded(self, query: Tensor, keys: Tensor, values: Tensor, of: Pass) -> Tensor:
        """Every row as wide as the widest: sizes do not depend on what is in the batch."""
        ends, counts = of.views["ends"], of.views["first"].diff()
        k, v = keys[of.table].flatten(1, 2), values[of.table].flatten(1, 2)  # [rows, longest, kv_heads, dim]
        key_at = torch.arange(k.shape[1], device=query.device)
        # What lies behind a text may be anything, and 0 times NaN is NaN.
        beyond = (key_at >= ends[:, None])[:, :, None, None]
        k, v = k.masked_fill(beyond, 0.0), v.masked_fill(beyond, 0.0)
        query_at = (ends - counts)[:, None] + torch.arange(of.take.shape[1], device=query.device)
        seen = key_at <= query_at[:, :, None]  # [rows, widest, longest]
        return _attend(query[of.take], k, v, seen).flatten(0, 1)[of.place]


def _attend(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """[rows, new, heads, dim] over [rows, length, kv_heads, dim], where seen [rows, new, length] is true."""
    q, k, v = (x.transpose(1, 2) for x in (query, keys, values))
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None], enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2)
