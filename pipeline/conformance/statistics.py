"""How likely chance explains a deviation, and which deviation would have been seen.

Two kinds of tail. The chi-square tail is an approximation and screens samples at 1 %. What declares a fault is an
inequality that holds for every sample size: with n draws from a law over k cells, the moment generating function of
n KL(found, law) is at most that of a gamma variable of shape k - 1 (Agrawal, "Finite-sample concentration of the
multinomial in relative entropy", IEEE Trans. Inf. Theory 2020), so that
P(n KL >= t) <= exp(-t) (e t / (k - 1))^(k - 1) for t >= k - 1. By Hoeffding's convex ordering (1956) it holds for
two cells whose probability differs from draw to draw, too, with their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

POWER = 0.99
SCREEN = 0.01
"""Samples with a chi-square tail below this are drawn again, larger."""


def chi_square_tail(value: float, df: int) -> float:
    """P(a chi-square variable with df degrees of freedom >= value)."""
    return shifted_tail(value, df, 0.0)


def shifted_tail(value: float, df: int, shift: float) -> float:
    """The same where the variable is not central: `shift` is its noncentrality."""
    half, mean = value / 2, shift / 2
    if half <= 0 or df == 0:
        return 1.0
    # Q(a + 1, x) = Q(a, x) + x^a exp(-x) / Gamma(a + 1), up to a = df / 2; beyond it, weighted by a Poisson law.
    a, tail = (1.0, math.exp(-half)) if df % 2 == 0 else (0.5, math.erfc(math.sqrt(half)))
    last = df / 2 + (mean + 10 * math.sqrt(mean) + 20 if mean > 0 else 0)
    total, j = 0.0, 0
    while a <= last:
        if a >= df / 2:
            total += tail * _poisson(j, mean)
            j += 1
        tail += _poisson(a, half)
        a += 1
    return min(total, 1.0)


def _poisson(j: float, mean: float) -> float:
    return math.exp(j * math.log(mean) - mean - math.lgamma(j + 1)) if mean > 0 else float(j == 0)


def critical(tail: float, df: int) -> float:
    """The value that a chi-square variable exceeds with probability `tail`."""
    return _solve(lambda value: chi_square_tail(value, df) < tail, 1.0)


def divergence_bound(value: float, shape: int) -> float:
    """Largest probability that n KL >= value, by the inequality above.

    Args:
        value: n KL(found, law), in nats; sums of independent ones add their shapes.
        shape: cells - 1.
    """
    if value <= shape:
        return 1.0
    return math.exp(-value + shape * (1.0 + math.log(value / shape))) if shape else 0.0


def critical_divergence(bound: float, shape: int) -> float:
    """The n KL at which `divergence_bound` falls to `bound`."""
    return _solve(lambda value: divergence_bound(value, shape) <= bound, 1.0)


def detectable(shift_at: Callable[[float], float], df: int, repeat: int, bound: float, shape: int) -> float:
    """The total variation that is found with 99 % power: by the screen, and again by `repeat` times the sample.

    Args:
        shift_at: noncentrality of one sample at a total variation.
        df: degrees of freedom of the screen.
        repeat: samples of the confirmation.
        bound: of the false alarms of the confirmation.
        shape: of the confirmation.

    Returns:
        1.0 where nothing would be found: one cell only.
    """
    if df == 0:
        return 1.0
    screen, confirm = critical(SCREEN, df), 2 * critical_divergence(bound, shape)

    def found(distance: float) -> bool:
        shift = shift_at(distance)
        missed = 2 - shifted_tail(screen, df, shift) - shifted_tail(confirm, df, shift * repeat)
        return missed <= 1 - POWER

    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


def total_variation(found: Sequence[float], law: Sequence[float]) -> float:
    """Half the sum of the differences of two laws over the same cells."""
    return sum(abs(a - b) for a, b in zip(found, law, strict=True)) / 2


def divergence(found: Sequence[float], law: Sequence[float]) -> float:
    """KL(found, law) in nats; infinite where something impossible was found."""
    if any(a > 0 and b <= 0 for a, b in zip(found, law, strict=True)):
        return math.inf
    return sum(a * math.log(a / b) for a, b in zip(found, law, strict=True) if a > 0)


def _solve(reached: Callable[[float], bool], high: float) -> float:
    while not reached(high):
        high *= 2
    low = 0.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
