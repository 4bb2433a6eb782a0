"""Ratios of speeds: their mean, and how far chance may have moved it."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence

RESAMPLES = 2000


def geomean(values: Sequence[float]) -> float:
    """The mean of ratios: twice as fast and half as fast make 1."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def bootstrap_interval(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float], resamples: int = RESAMPLES
) -> tuple[float, float]:
    """95 % interval of a statistic (Efron, "Bootstrap methods", 1979: percentiles over samples drawn with
    replacement); the same for the same values."""
    generator = random.Random(0)
    found = sorted(statistic(generator.choices(values, k=len(values))) for _ in range(resamples))
    return found[int(0.025 * resamples)], found[int(0.975 * resamples) - 1]
