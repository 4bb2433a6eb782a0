"""Counts in memory: nothing lost between threads, histograms in Prometheus' own form."""

from __future__ import annotations

import re
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.metrics import catalogue as metrics
from pipeline.metrics.catalogue import METRICS
from pipeline.metrics.tally import Increment, Tally, bounds


def collected(*takes: list[Increment]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    sums: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
    for increments in takes:
        for item in increments:
            sums[item.series, item.labels] += item.amount
    return dict(sums)


def test_catalogue_is_what_prometheus_accepts() -> None:
    names = [series for metric in METRICS for series in metric.series]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"spec_decode_[a-z_]+", metric.name) and metric.help.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram") and list(metric.buckets) == sorted(
            set(metric.buckets)
        )


@given(st.lists(st.floats(0, 200, allow_nan=False)), st.integers(0, 10))
def test_histogram_counts_what_is_at_most_each_bound(values: list[float], split: int) -> None:
    """Cumulative buckets, their count and sum, however the values fall into takes."""
    tally, metric = Tally(), metrics.FIRST_TOKEN_S
    tally.add((), [(metric, value) for value in values[:split]])
    first = tally.take()
    tally.add((), [(metric, value) for value in values[split:]])
    found = collected(first, tally.take())
    bucket, total, count = metric.series
    for bound, label in zip((*metric.buckets, float("inf")), bounds(metric), strict=True):
        assert found.get((bucket, (("le", label),)), 0) == sum(value <= bound for value in values)
    assert found.get((count, ()), 0) == len(values)
    assert found.get((total, ()), 0) == pytest.approx(sum(values))
    assert tally.take() == []


def test_threads_lose_nothing() -> None:
    tally, takes = Tally(), []
    done = threading.Event()

    def add() -> None:
        for _ in range(2000):
            tally.add([(metrics.ROUNDS, ("model",), 1)], [(metrics.DRAFT_LENGTH, 3)])

    def export() -> None:
        while not done.is_set():
            takes.append(tally.take())

    threads = [threading.Thread(target=add) for _ in range(4)]
    exporter = threading.Thread(target=export)
    for thread in (*threads, exporter):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    exporter.join()
    found = collected(*takes, tally.take())
    assert found["spec_decode_rounds_total", (("source", "model"),)] == 8000
    assert found["spec_decode_draft_length_bucket", (("le", "3"),)] == 8000
    assert found["spec_decode_draft_length_sum", ()] == 24000
    assert ("spec_decode_draft_length_bucket", (("le", "2"),)) not in found


def test_labels_that_do_not_fit_are_a_fault() -> None:
    tally = Tally()
    tally.add([(metrics.ROUNDS, (), 1)])
    with pytest.raises(ValueError):
        tally.take()
