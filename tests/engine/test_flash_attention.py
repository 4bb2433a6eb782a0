"""The library's kernel: when it is used, what it is given, and on a GPU that it agrees with the portable form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import GPU
from tiny_models import BLOCK, LIMITS, VOCAB, TinyModel, assert_close, compute, make_decoder
from torch import Tensor

from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.paged.attention import GatheredAttention
from pipeline.engine.paged.decoder import PagedDecoder
from pipeline.engine.paged.flash import FlashAttention, why_not_flash
from pipeline.engine.weights import load_weights
from pipeline.kv_cache.page_table import PageTable

TOKENS = torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.parametrize(
    ("capability", "dtype", "block", "dim", "reason"),
    [
        ((9, 0), torch.float16, 256, 128, None),
        ((8, 0), torch.float16, 512, 64, None),
        (None, torch.float16, 256, 128, "not a CUDA device"),
        ((7, 5), torch.float16, 256, 128, "compute capability 7.5 is below 8.0"),
        ((9, 0), torch.float32, 256, 128, "not 16 bits wide"),
        ((9, 0), torch.float16, 32, 128, "tokens_per_block = 32 is no multiple of 256"),
        ((9, 0), torch.float16, 256, 12, "head_dim = 12 is no multiple of 8"),
        ((9, 0), torch.float16, 256, 320, "head_dim = 320"),
    ],
)
def test_when_the_kernel_is_used(
    capability: tuple[int, int] | None, dtype: torch.dtype, block: int, dim: int, reason: str | None
) -> None:
    found = why_not_flash(capability, dtype, block, dim)
    assert found is None if reason is None else found is not None and reason in found


def stand_in(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, *,
    window_size: tuple[int, int], enable_gqa: bool, seqused_k: Tensor, block_table: Tensor, num_splits: int,
) -> Tensor:  # fmt: skip
    """What the documentation of `varlen_attn` says, in plain loops; NaN where nothing is computed."""
    assert window_size == (-1, 0) and num_splits == 1 and enable_gqa == (query.shape[1] != key.shape[2])
    for index in (cu_seq_q, cu_seq_k, seqused_k, block_table):
        assert index.dtype == torch.int32 and index.stride(-1) == 1
    assert max_q > 1 or len(query) == len(seqused_k)  # with one token each, rows are not looked up in cu_seq_q
    assert cu_seq_k.diff().tolist() == seqused_k.tolist()
    out = torch.full_like(query, torch.nan)
    group = query.shape[1] // key.shape[2]
    for i, (first, last) in enumerate(zip(cu_seq_q.tolist(), cu_seq_q.tolist()[1:], strict=False)):
        count, used = last - first, int(seqused_k[i])
        assert count <= max_q and used <= max_k <= block_table.shape[1] * key.shape[1]
        if not count:
            continue
        k, v = (pool[block_table[i].long()].flatten(0, 1)[:used].repeat_interleave(group, 1) for pool in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[first:last], k) * query.shape[2] ** -0.5
        seen = torch.arange(used) <= torch.arange(used - count, used)[:, None]  # aligned to the last token
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)
    return out


@pytest.mark.parametrize("graphs", [True, False])
def test_what_the_kernel_is_given(tiny: TinyModel, graphs: bool) -> None:
    """A kernel that does what is documented gives transformers' logits, padded and not; it is asked once per layer."""
    make_decoder(tiny.folder)
    config = ModelConfig.read(tiny.folder)
    attention = FlashAttention(LIMITS.max_seq_len // BLOCK)
    calls = []

    def kernel(*args: Any, **options: Any) -> Tensor:
        calls.append(args)
        return stand_in(*args, **options)

    attention._kernel = kernel
    weights = load_weights(tiny.folder / "engine-float32-None")
    decoder = PagedDecoder(config, weights, "float32", LIMITS, torch.device("cpu"), graphs, attention=attention)
    first, second = PageTable(BLOCK, [5, 3, 9, 1, 0, 2]), PageTable(BLOCK, [4, 7, 8, 6])
    assert_close(compute(decoder, first, TOKENS[:20]), tiny.logits(TOKENS[:20]))
    compute(decoder, second, TOKENS[5:15], logits=0)
    calls.clear()
    batch = PackedBatch((Row(tuple(TOKENS[20:22]), 20, first, 2), Row((TOKENS[15],), 10, second, 1)))
    expected = torch.cat([tiny.logits(TOKENS[:22])[20:], tiny.logits(TOKENS[5:16])[10:]])
    assert_close(decoder.forward(batch), expected)
    assert len(calls) == config.num_layers
    assert [len(calls[0][3]) - 1, len(calls[0][0])] == [2, 4 if graphs else 3]
    assert_close(compute(decoder, first, TOKENS[:23], 22), tiny.logits(TOKENS[:23])[22:])


@GPU
@pytest.mark.parametrize("widths", [(1,), (1, 1, 1), (5,), (3, 1, 7), (300, 1, 2)])
def test_the_kernel_agrees_with_the_portable_form(widths: tuple[int, ...]) -> None:
    """FP16 on a GPU, blocks of 256 tokens, grouped heads, ragged rows over texts of several blocks."""
    from pipeline.engine.paged.attention import Pass
    from pipeline.engine.paged.buckets import Bucket
    from pipeline.engine.paged.inputs import PassInputs

    device, size = torch.device("cuda"), 256
    generator = torch.Generator(device).manual_seed(0)
    keys, values = (
        torch.randn(16, size, 2, 64, generator=generator, device=device, dtype=torch.float16) for _ in range(2)
    )
    rows = []
    for i, width in enumerate(widths):
        start = 250 * (i + 1)
        rows.append(Row((0,) * width, start, PageTable(size, [i * 5 + j for j in (4, 0, 3, 1, 2)]), 0))
    batch = PackedBatch(tuple(rows))
    query = torch.randn(sum(widths), 8, 64, generator=generator, device=device, dtype=torch.float16)
    inputs = PassInputs.exact(batch, Bucket.of(batch, size), size, device)
    views = inputs.views()
    of = Pass(inputs, views, views["take"].long(), views["place"].long(), views["table"].long())
    found = FlashAttention(5).run(query, keys, values, of).float().cpu()
    assert_close(found, GatheredAttention(5).run(query, keys, values, of).float().cpu(), 5e-3)
