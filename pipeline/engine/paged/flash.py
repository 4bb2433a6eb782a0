"""Attention by torch's own FlashAttention kernel, which follows page tables: `torch.nn.attention.varlen`.

What it asks for, after the sources of torch 2.13 and FlashAttention 2: a CUDA device of compute capability 8.0 or
newer, 16-bit numbers, head_dim a multiple of 8 up to 256, blocks of a multiple of 256 tokens. `num_splits` is always 1:
FlashAttention 2 writes wrong rows where it splits the text of a paged, ragged batch (pytorch issue 194167, torchtitan
issue 3235); one split also makes a row's bits independent of its neighbours' lengths. Causal masks are aligned to the
last token of the text, as a verify wants them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.engine.paged.attention import PagedAttention, Pass

OLDEST_CAPABILITY = (8, 0)
BLOCK_MULTIPLE = 256
HEAD_DIM_MULTIPLE, LARGEST_HEAD_DIM = 8, 256


def why_not_flash(
    capability: tuple[int, int] | None, dtype: torch.dtype, tokens_per_block: int, head_dim: int
) -> str | None:
    """What keeps the kernel from being used, in words; None where nothing does.

    Args:
        capability: compute capability of the CUDA device; None for another device.
        dtype: of the KV pool.
    """
    if capability is None:
        return "not a CUDA device"
    if capability < OLDEST_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} is below 8.0"
    if dtype not in (torch.float16, torch.bfloat16):
        return "the KV cache is not 16 bits wide (dtype: float32)"
    if tokens_per_block % BLOCK_MULTIPLE:
        return f"tokens_per_block = {tokens_per_block} is no multiple of {BLOCK_MULTIPLE}"
    if head_dim % HEAD_DIM_MULTIPLE or head_dim > LARGEST_HEAD_DIM:
        return f"head_dim = {head_dim} is no multiple of {HEAD_DIM_MULTIPLE} up to {LARGEST_HEAD_DIM}"
    return None


class FlashAttention(PagedAttention):
    """One kernel for the whole packed, ragged batch.

    Args:
        max_blocks: of the longest text.
    """

    name = "torch varlen_attn (FlashAttention, paged)"

    def __init__(self, max_blocks: int) -> None:
        # Not at the top: it brings torch's compiler along, seconds that a server on a CPU need not wait for.
        from torch.nn.attention.varlen import varlen_attn

        self._max_blocks = max_blocks
        self._kernel = varlen_attn

    def fit_blocks(self, blocks: int) -> int:
        # The kernel reads no further than a row's own end, so that one size serves all texts.
        return self._max_blocks

    def run(self, query: Tensor, keys: Tensor, values: Tensor, of: Pass) -> Tensor:
        out = self._kernel(
            query,
            keys,
            values,
            of.views["first"],
            of.views["end_sums"],
            of.inputs.bucket.widest,
            of.inputs.bucket.blocks * keys.shape[1],
            window_size=(-1, 0),
            enable_gqa=query.shape[1] != keys.shape[2],
            seqused_k=of.views["ends"],
            block_table=of.views["table"],
            num_splits=1,
        )
        assert isinstance(out, Tensor)
        return out
