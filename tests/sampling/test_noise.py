"""The noise of "coupled": what it depends on, how it is distributed, and the choice it makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sampling.noise import choose, choose_dense, exponentials, noise_keys

GOLDEN_KEY = 834844254806117752
GOLDEN_NOISE = [0.18385789362137844, 0.3581392833009235, 0.3094634445547396, 0.41800038402783396]
CELLS = 64
LIMIT = 160.0
"""Chi-square with 63 degrees of freedom exceeds it with probability below 1e-9."""
SEEDS = st.integers(0, 2**64 - 1)


def uniform(keys: np.ndarray | int, ids: np.ndarray) -> np.ndarray:
    return -np.expm1(-exponentials(keys, ids))


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def test_noise_stays_the_same_between_releases() -> None:
    assert noise_keys([1], np.array([[2]])).item() == GOLDEN_KEY
    found = exponentials(GOLDEN_KEY, np.array([0, 1, 5, 128_255]))
    np.testing.assert_allclose(found, GOLDEN_NOISE, rtol=1e-12)


def test_keys_depend_on_seed_and_position() -> None:
    keys = noise_keys([0, 1, 2**64 - 1, 2**64], np.arange(500)[None])
    assert keys.shape == (4, 500) and keys.dtype == np.int64
    assert np.array_equal(keys[0], keys[3])  # seeds are taken modulo 2**64
    assert len(np.unique(keys[:3])) == 1500
    assert noise_keys([1], np.array([[7]])).item() == keys[1, 7]


@pytest.mark.parametrize("vary", ["seed", "position", "token"])
def test_noise_is_uniform_along_each_part_of_its_key(vary: str) -> None:
    """2**18 numbers; false-alarm rate below 1e-9. Small consecutive seeds, positions and ids are what is used."""
    n, zero = 1 << 18, np.zeros(1 << 18, np.int64)
    if vary == "seed":
        u = uniform(noise_keys(range(n), zero[:1, None])[:, 0], zero + 5)
    elif vary == "position":
        u = uniform(noise_keys([3], np.arange(n)[None])[0], zero + 5)
    else:
        u = uniform(GOLDEN_KEY, np.arange(n))
    assert bool(((u > 0) & (u < 1)).all())
    assert chi_square(np.bincount((u * CELLS).astype(int), minlength=CELLS)) < LIMIT
    # Also in the bits behind the first 16, which come from another word.
    assert chi_square(np.bincount((u * 2.0**22).astype(int) % CELLS, minlength=CELLS)) < LIMIT


@pytest.mark.parametrize("vary", ["seed", "position", "token", "lane", "transposed"])
def test_neighbours_are_independent(vary: str) -> None:
    """Pairs of numbers fill 8 x 8 cells evenly; false-alarm rate below 1e-9."""
    n, zero = 1 << 17, np.zeros(1 << 17, np.int64)
    if vary == "seed":
        keys = noise_keys(range(n + 1), zero[:1, None])[:, 0]
        first, second = uniform(keys[:-1], zero + 9), uniform(keys[1:], zero + 9)
    elif vary == "position":
        keys = noise_keys([8], np.arange(n + 1)[None])[0]
        first, second = uniform(keys[:-1], zero + 9), uniform(keys[1:], zero + 9)
    elif vary == "token":
        u = uniform(GOLDEN_KEY, np.arange(4, n + 5))
        first, second = u[:-1], u[1:]
    elif vary == "lane":
        first, second = uniform(GOLDEN_KEY, 4 * np.arange(n)), uniform(GOLDEN_KEY, 4 * np.arange(n) + 3)
    else:  # (seed a, position b) and (seed b, position a)
        a, b = np.divmod(np.arange(n), 400)
        keys = noise_keys(range(400), np.arange(400)[None])
        at = (a % 400 != b).nonzero()[0]
        first, second = uniform(keys[a % 400, b][at], zero[at]), uniform(keys[b, a % 400][at], zero[at])
    cells = (first * 8).astype(int) * 8 + (second * 8).astype(int)
    assert chi_square(np.bincount(cells, minlength=64)) < LIMIT


def test_rare_tokens_keep_their_probability() -> None:
    """P(E < e) = e near 0 too: 2**22 numbers below 2**-10, expected 4096 (standard deviation 64)."""
    keys = noise_keys([5], np.arange(64)[None])[0]
    found = sum(int((exponentials(key, np.arange(1 << 16)) < 2.0**-10).sum()) for key in keys.tolist())
    assert abs(found - 4096 * (1 - 2.0**-11)) < 6.5 * 64


def by_hand(law: np.ndarray, key: int, ids: np.ndarray) -> int:
    scores = [e / mass if mass > 0 else np.inf for e, mass in zip(exponentials(key, ids), law, strict=True)]
    return int(np.argmin(scores))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 7),
    vocab=st.integers(1, 300),
    peak=st.sampled_from([0.0, 1.0, 6.0, 40.0]),
    cut=st.sampled_from([0.0, 0.5, 0.95]),
    reduced=st.booleans(),
    double=st.booleans(),
    seed=SEEDS,
)
def test_choice_is_the_definition(
    rows: int, vocab: int, peak: float, cut: float, reduced: bool, double: bool, seed: int
) -> None:
    """Whatever is skipped on the way: sparse laws, reduced heads, a device's own path."""
    generator = torch.Generator().manual_seed(seed % 2**31)
    law = torch.softmax(torch.randn(rows, vocab, generator=generator) * peak, -1)
    law *= torch.rand(rows, vocab, generator=generator) >= cut
    law[:, seed % vocab] += 1e-3
    law = law.double() if double else law
    ids = torch.randperm(1000, generator=generator)[:vocab].sort().values if reduced else torch.arange(vocab)
    keys = torch.from_numpy(noise_keys([seed + row for row in range(rows)], np.array([[3]]))[:, 0])
    expected = [by_hand(law[row].numpy(), int(keys[row]), ids.numpy()) for row in range(rows)]
    assert choose(law, keys, ids if reduced else None).tolist() == expected
    assert choose_dense(law, keys, ids).tolist() == expected


@pytest.mark.parametrize("reduced", [False, True])
def test_choice_of_a_large_vocabulary(reduced: bool) -> None:
    vocab, rows = 50_001, 12
    ids = torch.arange(vocab) * 2 + 1 if reduced else None
    law = torch.softmax(-1.3 * torch.arange(1, vocab + 1).log()[torch.rand(rows, vocab).argsort(-1)], -1)
    keys = torch.from_numpy(noise_keys([4], np.arange(rows)[None])[0])
    chosen = choose(law, keys, ids)
    assert torch.equal(chosen, choose_dense(law, keys, torch.arange(vocab) if ids is None else ids))
    for row in range(rows):
        assert choose(law[row : row + 1], keys[row : row + 1], ids).item() == chosen[row]


def test_laws_with_nothing_possible_harm_nobody() -> None:
    law = torch.tensor([[0.2, 0.8], [torch.nan, torch.nan], [0.0, 0.0], [0.0, 1.0]])
    keys = torch.tensor([1, 2, 3, 4])
    chosen = choose(law, keys).tolist()
    assert chosen[0] == choose(law[:1], keys[:1]).item() and chosen[3] == 1
    assert choose(law[:0], keys[:0]).tolist() == []


def test_choices_follow_the_law() -> None:
    """2**17 positions; false-alarm rate below 1e-9: chi-square with 11 degrees of freedom exceeds 70."""
    law = torch.softmax(torch.linspace(0, 4, 12), -1)
    keys = torch.from_numpy(noise_keys([11], np.arange(1 << 17)[None])[0])
    counts = torch.bincount(choose(law.expand(1 << 17, -1), keys), minlength=12).double()
    expected = law.double() * (1 << 17)
    assert float(((counts - expected) ** 2 / expected).sum()) < 70


def test_two_laws_choose_the_same_as_often_as_the_paper_says() -> None:
    """At least (1 - d) / (1 + d) of the time, d their total variation (arXiv 2408.07978, theorem 1)."""
    generator = torch.Generator().manual_seed(1)
    keys = torch.from_numpy(noise_keys([2], np.arange(20_000)[None])[0])
    for spread in (0.2, 0.5, 1.0, 2.0):
        logits = torch.randn(40, generator=generator) * 2
        p = torch.softmax(logits, -1)
        q = torch.softmax(logits + torch.randn(40, generator=generator) * spread, -1)
        d = float((p - q).abs().sum() / 2)
        same = (choose(p.expand(20_000, -1), keys) == choose(q.expand(20_000, -1), keys)).double().mean()
        assert float(same) > (1 - d) / (1 + d) - 0.02
