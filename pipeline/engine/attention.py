"""Attention of a packed batch over the paged KV pool."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.engine.batch import PackedBatch, Row


@dataclass(frozen=True)
class _RowPlan:
    """What attention needs of one row, worked out once per pass and used in every layer."""

    first: int  # row's tokens are [first, last) of the batch
    last: int
    length: int  # cached tokens it attends to, its own included
    start_slot: int  # first slot, where the pages lie side by side
    slots: Tensor | None  # [length] where they do not
    mask: Tensor | None  # [tokens, length] added to the scores
    causal: bool


class PagedAttention:
    """Keys and values of all layers in one pool, addressed by slots.

    Args:
        layers, kv_heads, head_dim: of the model.
        slots: tokens the pool holds (blocks x tokens per block).
        token_by_token: attend one token at a time over exactly its own history, so that the bits of a token
            do not depend on which tokens are computed with it.
    """

    def __init__(self, layers: int, slots: int, kv_heads: int, head_dim: int, token_by_token: bool = False) -> None:
        # Slots before heads: a token's keys are written with one copy, and a run of slots is a view.
        self._keys = torch.zeros(layers, slots, kv_heads, head_dim)
        self._values = torch.zeros(layers, slots, kv_heads, head_dim)
        self._token_by_token = token_by_token

    @staticmethod
    def bytes_needed(layers: int, slots: int, kv_heads: int, head_dim: int) -> int:
        """Size of the pool: keys and values in float32."""
        return 2 * 4 * layers * slots * kv_heads * head_dim

    def copy_block(self, source: int, destination: int, tokens: int, tokens_per_block: int) -> None:
        """Copy the KV of a block's first `tokens` tokens to another block, in all layers."""
        s, d = source * tokens_per_block, destination * tokens_per_block
        self._keys[:, d : d + tokens] = self._keys[:, s : s + tokens]
        self._values[:, d : d + tokens] = self._values[:, s : s + tokens]

    def plan(self, batch: PackedBatch) -> AttentionPlan:
        """Resolve pages, masks and write slots of a batch, before its first layer."""
        rows: list[_RowPlan] = []
        write: list[int] = []
        first = 0
        for row in batch.rows:
            count = len(row.tokens)
            write.extend(row.table.slots(row.start, count))
            if self._token_by_token:
                rows.extend(self._row_plan(row, first + i, row.start + i, 1) for i in range(count))
            else:
                rows.append(self._row_plan(row, first, row.start, count))
            first += count
        # Equal ends are not enough: pages 0, 5, 2 begin and end like 0, 1, 2.
        contiguous = len(batch.rows) == 1 and write == list(range(write[0], write[0] + len(write)))
        return AttentionPlan(tuple(rows), None if contiguous else torch.tensor(write), write[0], len(write))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan) -> Tensor:
        """Store k and v, then attend.

        Args:
            q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim].

        Returns:
            [tokens, heads * head_dim]
        """
        keys, values = self._keys[layer], self._values[layer]
        if plan.write_slots is None:
            keys[plan.first_slot : plan.first_slot + plan.num_tokens] = k
            values[plan.first_slot : plan.first_slot + plan.num_tokens] = v
        else:
            keys.index_copy_(0, plan.write_slots, k)
            values.index_copy_(0, plan.write_slots, v)
        grouped = q.shape[1] != k.shape[1]
        outputs = []
        for row in plan.rows:
            if row.slots is None:
                row_k = keys[row.start_slot : row.start_slot + row.length]
                row_v = values[row.start_slot : row.start_slot + row.length]
            else:
                row_k = keys.index_select(0, row.slots)
                row_v = values.index_select(0, row.slots)
            out = functional.scaled_dot_product_attention(
                q[row.first : row.last].transpose(0, 1).unsqueeze(0),
                row_k.transpose(0, 1).unsqueeze(0),
                row_v.transpose(0, 1).unsqueeze(0),
                attn_mask=row.mask,
                is_causal=row.causal,
                enable_gqa=grouped,
            )
            outputs.append(out.squeeze(0).transpose(0, 1).flatten(1))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    @staticmethod
    def _row_plan(row: Row, first: int, start: int, count: int) -> _RowPlan:
        length = start + count
        start_slot = row.table.first_slot_if_contiguous(length)
        slots = None if start_slot is not None else torch.tensor(row.table.slots(0, length))
        causal = count > 1 and start == 0
        mask = None
        if count > 1 and not causal:
            mask = torch.zeros(count, length)
            mask[:, start:] = torch.full((count, count), float("-inf")).triu_(1)
        return _RowPlan(first, first + count, length, start_slot or 0, slots, mask, causal)


@dataclass(frozen=True)
class AttentionPlan:
    """Row plans of one pass, and where its new keys and values are written."""

    rows: tuple[_RowPlan, ...]
    write_slots: Tensor | None  # [tokens], or None where they are one run
    first_slot: int
    num_tokens: int
