"""Seeds and counter-based uniforms."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sampling.random import ROLES, call_seed, fresh_seed, uniforms

GOLDEN = [0.3035680343067586, 0.8487087496857769]
GOLDEN_SEED = 9637765650832099945
SEEDS = st.integers(0, 2**64 - 1)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=SEEDS, start=st.integers(0, 2**40), count=st.integers(0, 30), skip=st.integers(0, 30))
def test_a_number_depends_on_its_index_alone(seed: int, start: int, count: int, skip: int) -> None:
    whole = uniforms(seed, start, skip + count)
    assert np.array_equal(whole[skip:], uniforms(seed, start + skip, count))
    assert whole.dtype == np.float64 and whole.shape == (skip + count,)
    assert bool(((whole >= 0) & (whole < 1)).all())
    assert np.array_equal(whole * 2**53, np.floor(whole * 2**53))  # 53 bits


def test_numbers_stay_the_same_between_releases() -> None:
    assert uniforms(1, 0, 2).tolist() == GOLDEN
    assert call_seed(1, 2, "draft") == GOLDEN_SEED


def test_numbers_are_uniform_and_differ_between_seeds() -> None:
    """256 cells of 2**18 numbers: chi-square within 255 +- 160, exceeded with probability below 1e-10."""
    numbers = np.concatenate([uniforms(call_seed(3, i, "target"), 0, 64) for i in range(4096)])
    counts = np.bincount((numbers * 256).astype(int), minlength=256)
    chi_square = float(((counts - 1024.0) ** 2 / 1024.0).sum())
    assert abs(chi_square - 255) < 160
    assert len(np.unique(numbers)) == len(numbers)


def test_negative_indices_are_refused() -> None:
    with pytest.raises(ValueError, match="start = -1"):
        uniforms(0, -1, 1)
    with pytest.raises(ValueError, match="count = -2"):
        uniforms(0, 0, -2)


def test_call_seeds_differ_by_request_round_and_role() -> None:
    seeds = {
        call_seed(request, turn, role)
        for request in (-1, 0, 1, 10, 2**63, 2**64)
        for turn in range(50)
        for role in ROLES
    }
    assert len(seeds) == 6 * 50 * 3
    assert all(0 <= seed < 2**64 for seed in seeds)
    with pytest.raises(ValueError, match="'verifier'"):
        call_seed(1, 1, "verifier")  # type: ignore[arg-type]


def test_fresh_seeds_differ() -> None:
    assert len({fresh_seed() for _ in range(100)}) == 100


def test_threads_do_not_disturb_one_another() -> None:
    wrong: list[int] = []

    def check(seed: int) -> None:
        expected = uniforms(seed, 0, 64)
        for start in range(60):
            if not np.array_equal(uniforms(seed, start, 4), expected[start : start + 4]):
                wrong.append(seed)

    threads = [threading.Thread(target=check, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
