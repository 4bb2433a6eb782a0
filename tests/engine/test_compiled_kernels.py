"""The compiled program's parts against plain numpy, and its threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from tiny_models import BLOCK, TinyModel, best_of, compute, make_decoder

from pipeline.engine.compiled import team as team_module
from pipeline.engine.compiled.decoder import CompiledDecoder
from pipeline.engine.compiled.memory import zeros
from pipeline.engine.compiled.products import exponential, multiply, rms_norm
from pipeline.engine.compiled.tile import LANES, MAX_ROWS
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.weights import CheckpointReader, fused_tensors
from pipeline.kv_cache.page_table import PageTable

RNG = np.random.default_rng(0)


@njit
def _product(x: Any, rows: int, w: Any, depth: int, panels: int, keep: bool, out: Any) -> None:
    multiply((x, 0, depth), rows, (w, 0, depth * LANES, LANES), depth, panels, keep, (out, 0, panels * LANES))


@njit
def _exponentials(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = exponential(x[i])


@njit
def _norm(x: Any, weight: Any, size: int, eps: Any, out: Any) -> None:
    rms_norm(x, 0, weight, 0, size, eps, out, 0)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_products_of_every_tile_equal_numpy(kind: type) -> None:
    """Every number of rows and panels, whole tiles and what is left over; each row has the bits it has alone."""
    depth, panels = 37, 7
    w = RNG.standard_normal((panels, depth, LANES)).astype(kind)
    flat = w.reshape(-1).view(np.uint16) if kind is np.float16 else w.reshape(-1)
    matrix = w.astype(np.float64).transpose(0, 2, 1).reshape(panels * LANES, depth)
    x = RNG.standard_normal((2 * MAX_ROWS + 5, depth)).astype(np.float32)
    alone = np.zeros((len(x), panels * LANES), np.float32)
    for r in range(len(x)):
        _product(x[r], 1, flat, depth, panels, False, alone[r])
    np.testing.assert_allclose(alone, x @ matrix.T, rtol=1e-5, atol=1e-5)
    for rows in range(1, len(x) + 1):
        out = np.full((rows, panels * LANES), np.nan, np.float32)
        _product(x[:rows].reshape(-1), rows, flat, depth, panels, False, out.reshape(-1))
        assert np.array_equal(out, alone[:rows])
        for few in range(1, 6):
            out = np.ones((rows, few * LANES), np.float32)
            _product(x[:rows].reshape(-1), rows, flat, depth, few, True, out.reshape(-1))
            np.testing.assert_allclose(out, 1 + alone[:rows, : few * LANES], rtol=1e-5, atol=1e-5)


def test_exponential_is_within_rounding_and_keeps_nan() -> None:
    x = np.concatenate([np.linspace(-86.9, 87.9, 200_001), RNG.standard_normal(1000)]).astype(np.float32)
    out = np.zeros_like(x)
    _exponentials(x, out)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(out - exact) / exact) < 2.5e-7
    edges = np.array([np.nan, -np.inf, -1e30, 0.0, 1e30], np.float32)
    out = np.zeros_like(edges)
    _exponentials(edges, out)
    assert np.isnan(out[0]) and np.all(out[1:3] < 1e-37) and out[3] == 1.0 and np.isfinite(out[4])


def test_norm_of_a_padded_row_counts_its_own_numbers_only() -> None:
    size = 27
    x = np.zeros(32, np.float32)
    x[:size] = RNG.standard_normal(size)
    weight, out = RNG.standard_normal(size).astype(np.float32), np.zeros(32, np.float32)
    _norm(x, weight, size, np.float32(1e-5), out)
    expected = x[:size] / np.sqrt(np.mean(x[:size].astype(np.float64) ** 2) + 1e-5) * weight
    np.testing.assert_allclose(out[:size], expected, rtol=1e-6)


@pytest.mark.parametrize("count", [1, 3_000_000])
def test_zeros_are_zero_and_large_ones_begin_a_huge_page(count: int) -> None:
    array = zeros(count, np.float32)
    assert array.shape == (count,) and not array.any()
    assert count == 1 or array.ctypes.data % (2 << 20) == 0


def _with_threads(tiny: TinyModel, threads: int) -> CompiledDecoder:
    config = ModelConfig.read(tiny.folder)
    tensors = dict(fused_tensors(config, CheckpointReader(tiny.folder), None, None))
    return CompiledDecoder(config, tensors, "float32", 96, 16, BLOCK, threads)


def test_bits_do_not_depend_on_the_number_of_threads(tiny: TinyModel) -> None:
    """Who computes a chunk changes nothing; 40 passes, so that threads meet in different ways."""
    tokens = list(range(1, 21))
    table = PageTable(BLOCK, list(range(16)))
    expected = compute(_with_threads(tiny, 1), table, tokens).clone()
    for threads in (2, 3, 5):
        decoder = _with_threads(tiny, threads)
        for _ in range(40):
            assert torch.equal(compute(decoder, table, tokens), expected)
        decoder.close()


def test_a_thread_that_wakes_late_delays_nobody(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes end without a thread that has not come; when it comes, it changes none of them."""
    held, original = threading.Event(), team_module.run_pass

    def late(thread: int, *args: Any) -> None:
        if thread == 1:
            assert held.wait(60)
        original(thread, *args)

    monkeypatch.setattr(team_module, "run_pass", late)
    decoder = _with_threads(tiny, 2)
    table = PageTable(BLOCK, list(range(16)))
    first = compute(decoder, table, [1, 2, 3]).clone()
    second = compute(decoder, table, [4, 5, 6, 7]).clone()  # as many passes as there are sets of counters
    held.set()
    assert torch.equal(compute(decoder, table, [1, 2, 3]), first)
    assert torch.equal(compute(decoder, table, [4, 5, 6, 7]), second)
    decoder.close()


def test_copied_block_serves_as_its_source(tiny: TinyModel) -> None:
    """Copy on write: the first tokens of a block, keys and values, in every layer, and nothing else."""
    tokens = list(range(1, 1 + BLOCK))
    decoder = make_decoder(tiny.folder, blocks=4)
    expected = compute(decoder, PageTable(BLOCK, [0, 1]), [*tokens, 9], 0, 1).clone()
    for kept in range(BLOCK):
        decoder._pool.keys.fill(0)
        compute(decoder, PageTable(BLOCK, [0, 1]), tokens)
        decoder.copy_block(0, 3, kept)
        again = compute(decoder, PageTable(BLOCK, [3, 1]), [*tokens, 9], kept, 1)
        assert torch.equal(again, expected)


@pytest.mark.parametrize("head_ids", [None, [7, 3, 30, 1, 9]])
def test_best_is_what_the_logits_say(tiny: TinyModel, head_ids: list[int] | None) -> None:
    """The largest logit and whether all are finite, found on the way; padding of the head is no token."""
    decoder = make_decoder(tiny.folder, head_ids=head_ids)
    logits = compute(decoder, PageTable(BLOCK, list(range(8))), list(range(1, 24)))
    assert decoder.best() == best_of(logits)
    assert all(decoder.best().finite)
    for bad in (np.nan, np.inf, -np.inf):
        head = decoder._weights.matrices[decoder._weights.head :]
        kept = head[:LANES].copy()
        head[:LANES] = bad  # one input of the first outputs
        logits = compute(decoder, PageTable(BLOCK, list(range(8))), list(range(1, 24)))
        assert decoder.best().finite == best_of(logits).finite
        assert not all(decoder.best().finite)
        head[:LANES] = kept
