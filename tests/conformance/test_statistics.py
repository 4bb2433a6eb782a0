"""Tails against known values, bounds against simulation, and power that is what it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.conformance.goodness import Plan, fit_texts
from pipeline.conformance.statistics import (
    SCREEN,
    chi_square_tail,
    critical,
    critical_divergence,
    detectable,
    divergence,
    divergence_bound,
    shifted_tail,
    total_variation,
)
from pipeline.conformance.texts import Cells


@pytest.mark.parametrize("df", [1, 2, 3, 8, 15])
@pytest.mark.parametrize("value", [0.5, 4.0, 20.0, 60.0])
def test_chi_square_tail(df: int, value: float) -> None:
    """Against torch's incomplete gamma function."""
    half = torch.tensor([df / 2, value / 2], dtype=torch.float64)
    assert chi_square_tail(value, df) == pytest.approx(float(torch.special.gammaincc(half[0], half[1])), rel=1e-9)


@pytest.mark.parametrize(("df", "shift"), [(1, 3.0), (3, 40.0), (11, 60.0)])
def test_shifted_tail(df: int, shift: float) -> None:
    """Against a simulation."""
    draws = np.random.default_rng(1).noncentral_chisquare(df, shift, 200_000)
    for value in np.quantile(draws, [0.01, 0.3, 0.9]):
        assert shifted_tail(float(value), df, shift) == pytest.approx(float(np.mean(draws >= value)), abs=0.005)
    assert shifted_tail(7.0, df, 0.0) == chi_square_tail(7.0, df)


def test_critical_values() -> None:
    """They are inverses."""
    assert chi_square_tail(critical(0.01, 5), 5) == pytest.approx(0.01, rel=1e-4)
    assert divergence_bound(critical_divergence(1e-9, 4), 4) == pytest.approx(1e-9, rel=1e-3)


@pytest.mark.parametrize(("law", "n"), [((0.5, 0.5), 40), ((0.96, 0.02, 0.02), 60), ((0.4, 0.3, 0.2, 0.05, 0.05), 30)])
def test_the_divergence_bound_is_a_bound(law: tuple[float, ...], n: int) -> None:
    """For small samples and rare cells, too, where the chi-square tail is no more than an approximation."""
    counts = np.random.default_rng(2).multinomial(n, law, 100_000) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        nats = n * np.where(counts > 0, counts * np.log(counts / law), 0.0).sum(-1)
    for value in np.quantile(nats, [0.5, 0.9, 0.99, 0.999]):
        assert np.mean(nats >= value) <= divergence_bound(float(value), len(law) - 1)
    assert n * divergence(counts[0].tolist(), law) == pytest.approx(nats[0])


def test_power_and_false_alarms_of_the_screen() -> None:
    """At the total variation that is printed, 99 % are found; of right ones, 1 % is drawn again."""
    law = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    cells = Cells(tuple(law), {(i,): i for i in range(4)})
    n, plan, generator = 400, Plan(4, 1e-9), np.random.default_rng(3)
    seen = fit_texts([(0,)] * n, cells, plan).detectable
    assert 0.1 < seen < 0.2
    # The hardest to find: in proportion to the law.
    wrong = law * (1 + np.array([1, -1, 1, -1, 1]) * 2 * seen / np.array([1, 1, 1, 1, 1]))
    wrong /= wrong.sum()
    wrong = law + (wrong - law) * seen / total_variation(wrong.tolist(), law.tolist())
    found = alarms = 0
    for _ in range(2000):
        for truth in (wrong, law):
            counts = generator.multinomial(n, truth)
            value = float(((counts - n * law) ** 2 / (n * law)).sum())
            if truth is law:
                alarms += chi_square_tail(value, 4) < SCREEN
            else:
                found += chi_square_tail(value, 4) < SCREEN
    assert found / 2000 > 0.98
    assert alarms / 2000 < 0.02


def test_power_grows_with_the_sample() -> None:
    """And one cell shows nothing."""
    few, many = (detectable(lambda d, n=n: 4 * n * d**2, 5, 4, 1e-9, 5) for n in (200, 800))  # type: ignore[misc]
    assert many == pytest.approx(few / 2, rel=0.05)
    assert detectable(lambda d: 1e9 * d, 0, 4, 1e-9, 0) == 1.0
