"""Metrics on Triton's own /metrics endpoint, by the Python backend's metric interface.

Source: NVIDIA python_backend README, "Custom Metrics", and what was measured of release 24.10: an operation costs 40
to 65 us, and two threads that operate one metric at the same time take the server down. So one thread makes, changes
and deletes them all, a few times a second. A histogram of Triton's costs an operation per observed value; here it is
counters named _bucket, _sum and _count, which Prometheus reads the same and which are changed in bulk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pipeline.metrics.catalogue import Metric
from pipeline.metrics.tally import Increment, Labels, Tally, bounds

PERIOD_S = 0.5
_CLOSE_S = 2.0

Gauge = tuple[Metric, Labels, float]


class MetricsExporter:
    """Moves a tally to Triton from `start` to `close`, and once more then.

    Args:
        utils: `triton_python_backend_utils`.
        metrics: what this process exports; series without labels exist, as 0, from the start.
        tally: counters and histograms.
        gauges: asked for at every flush: (gauge, values of its labels, value).
        period_s: seconds between flushes.
    """

    def __init__(
        self,
        utils: Any,
        metrics: Sequence[Metric],
        tally: Tally,
        gauges: Callable[[], Iterable[Gauge]] = tuple,
        period_s: float = PERIOD_S,
    ) -> None:
        self._utils = utils
        self._metrics = metrics
        self._tally = tally
        self._gauges = gauges
        self._period_s = period_s
        self._families: dict[str, Any] = {}
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Begin, or do nothing where it has begun.

        To be called from `execute`: in `initialize` the stub and Triton still have messages of their own to exchange.
        """
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Flush once more and delete the metrics. Returns within a bound even where Triton does not answer."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            self._declare()
            while not self._ending.wait(self._period_s):
                self._flush()
            self._flush()
        except Exception as error:  # a server without metrics still serves
            self._utils.Logger.log_warn(f"no more metrics from this process: {type(error).__name__}: {error}")
        finally:
            # The stub dies of metrics that outlive their family, and of families that outlive the model.
            self._series.clear()
            self._families.clear()

    def _declare(self) -> None:
        kinds = self._utils.MetricFamily
        for metric in self._metrics:
            kind = kinds.GAUGE if metric.kind == "gauge" else kinds.COUNTER
            for name in metric.series:
                self._families[name] = kinds(name=name, description=metric.help, kind=kind)
            if metric.kind == "histogram":
                bucket, total, count = metric.series
                for name, labels in [
                    *((bucket, (("le", bound),)) for bound in bounds(metric)),
                    (total, ()),
                    (count, ()),
                ]:
                    self._find(name, labels)
            elif not metric.labels:
                self._find(metric.name, ())

    def _flush(self) -> None:
        for item in self._tally.take():
            self._increment(item)
        for metric, values, value in self._gauges():
            labels = tuple(zip(metric.labels, values, strict=True))
            if self._values.get((metric.name, labels)) != value:
                self._find(metric.name, labels).set(value)
                self._values[metric.name, labels] = value

    def _increment(self, item: Increment) -> None:
        self._find(item.series, item.labels).increment(item.amount)

    def _find(self, name: str, labels: tuple[tuple[str, str], ...]) -> Any:
        found = self._series.get((name, labels))
        if found is None:
            found = self._series[name, labels] = self._families[name].Metric(labels=dict(labels))
        return found
