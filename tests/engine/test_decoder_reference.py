"""Decoder against transformers: every supported family, every way to compute the same tokens."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import BLOCK, KINDS, VOCAB, TinyModel, assert_close, compute, make_decoder, make_tiny

from pipeline.kv_cache.page_table import PageTable

LENGTH = 41
TOKENS = torch.randint(0, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
BLOCKS = [7, 3, 4, 9, 11, 0, 5, 2, 1, 10, 8]  # 41 tokens in pages out of order


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny(request.param, tmp_path_factory.mktemp("kind"))


def test_every_way_to_compute_equals_transformers(model: TinyModel, kind: str) -> None:
    """Prefill, decoding with the cache, verify rows and prefill in chunks: all give transformers' logits."""
    decoder, expected = make_decoder(model.folder, kind=kind), model.logits(TOKENS)
    assert_close(compute(decoder, PageTable(BLOCK, BLOCKS), TOKENS), expected)
    assert_close(compute(decoder, PageTable(BLOCK, BLOCKS), TOKENS, logits=1), expected[-1:])
    table = PageTable(BLOCK, [12, 13, *BLOCKS])
    assert compute(decoder, table, TOKENS[:11], logits=0).shape == (0, VOCAB)
    for end in range(12, 20):
        assert_close(compute(decoder, table, TOKENS[:end], end - 1), expected[end - 1 : end])
    assert_close(compute(decoder, table, TOKENS[:25], 20 - 1), expected[19:25])
    # The rejected rest of a verify is overwritten.
    wrong = [*TOKENS[:26], 0, 0, 0]
    compute(decoder, table, wrong, 25)
    assert_close(compute(decoder, table, TOKENS, 26), expected[26:])


def test_float16_weights_with_float32_arithmetic(model: TinyModel, kind: str) -> None:
    """FP16 equals FP32 arithmetic on matrices rounded to FP16, norms and biases untouched; a device that is not the CPU
    rounds what enters a product, and the KV cache, too."""
    tolerance = 2e-2 if kind in ("paged-away", "paged-cuda") else 1e-4
    rounded = copy.deepcopy(model.reference)
    with torch.no_grad():
        for parameter in rounded.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter.half().float())
    expected = TinyModel(rounded, model.folder).logits(TOKENS)
    decoder = make_decoder(model.folder, "float16", kind=kind)
    table = PageTable(BLOCK, BLOCKS)
    assert_close(compute(decoder, table, TOKENS[:30]), expected[:30], tolerance)
    assert_close(compute(decoder, table, TOKENS, 30), expected[30:], tolerance)
    assert float((expected - model.logits(TOKENS)).abs().max()) > 1e-4 * float(expected.abs().max())


def test_reduced_head_gives_columns_of_the_whole(tiny: TinyModel, kind: str) -> None:
    """An LM head of fewer tokens computes exactly those tokens' logits, in its own order."""
    ids = [5, 90, 3, 17]
    decoder = make_decoder(tiny.folder, head_ids=ids, kind=kind)
    assert_close(compute(decoder, PageTable(BLOCK, BLOCKS), TOKENS), tiny.logits(TOKENS)[:, ids])
    assert compute(decoder, PageTable(BLOCK, BLOCKS), TOKENS, logits=0).shape == (0, 4)
