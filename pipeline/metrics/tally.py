"""Counts in memory: added by any thread, taken away by the one that exports them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.metrics.catalogue import Metric

Labels = tuple[str, ...]
Count = tuple[Metric, Labels, float]
Value = tuple[Metric, float]


@dataclass(frozen=True)
class Increment:
    """What a series grew by: its name, its labels, and how much."""

    series: str
    labels: tuple[tuple[str, str], ...]
    amount: float


class Tally:
    """Sums since the last `take`. An `add` is a few dictionary operations under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[Metric, Labels], float] = {}
        self._histograms: dict[Metric, list[float]] = {}  # per bucket, +Inf, then the sum

    def add(self, counts: Iterable[Count], values: Iterable[Value] = ()) -> None:
        """Add to counters and histograms in one go.

        Args:
            counts: (counter, values of its labels, amount).
            values: (histogram, observed value).
        """
        with self._lock:
            totals = self._counts
            for metric, labels, amount in counts:
                key = (metric, labels)
                totals[key] = totals.get(key, 0.0) + amount
            for metric, value in values:
                histogram = self._histograms.get(metric)
                if histogram is None:
                    histogram = self._histograms[metric] = [0.0] * (len(metric.buckets) + 2)
                histogram[bisect_left(metric.buckets, value)] += 1
                histogram[-1] += value

    def take(self) -> list[Increment]:
        """Everything since the last call, series by series; unchanged series are left out."""
        with self._lock:
            counts, self._counts = self._counts, {}
            histograms, self._histograms = self._histograms, {}
        found = [
            Increment(metric.name, tuple(zip(metric.labels, labels, strict=True)), amount)
            for (metric, labels), amount in counts.items()
            if amount
        ]
        for metric, histogram in histograms.items():
            found.extend(_cumulative(metric, histogram))
        return found


def bounds(metric: Metric) -> tuple[str, ...]:
    """Values of the label `le` of a histogram's buckets."""
    return (*(f"{bound:g}" for bound in metric.buckets), "+Inf")


def _cumulative(metric: Metric, histogram: list[float]) -> Iterator[Increment]:
    bucket, total, count = metric.series
    below = 0.0
    for bound, amount in zip(bounds(metric), histogram[:-1], strict=True):
        below += amount
        if below:
            yield Increment(bucket, (("le", bound),), below)
    yield Increment(count, (), below)
    if histogram[-1] > 0:  # a counter of Triton's takes nothing negative: a clock's last bit may be
        yield Increment(total, (), histogram[-1])
