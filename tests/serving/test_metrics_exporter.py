"""Moving a tally to Triton: one thread for every operation, metrics deleted before their families."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from pipeline.engine.step import KvBlocks, KvUse, StepModel, StepResult
from pipeline.metrics import catalogue as metrics
from pipeline.metrics.tally import Tally
from pipeline.serving.metrics import MetricsExporter
from pipeline.serving.step_server import StepServer

from .fakes import Utils
from .test_step_server import Model, call

ENDLESS_S = 3600.0


class FakeMetrics:
    """`pb_utils.MetricFamily`: takes note of values, and of the threads that touch anything."""

    COUNTER, GAUGE = "counter", "gauge"

    def __init__(self, fail_after: int | None = None) -> None:
        self.values: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self.threads: set[str] = set()
        self.gone: list[str] = []
        self.operations = 0
        self._fail_after = fail_after

    def __call__(self, *, name: str, description: str, kind: str) -> _Family:
        assert description and kind in (self.COUNTER, self.GAUGE)
        self.touch()
        return _Family(self, name, kind)

    def touch(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.operations += 1
        if self._fail_after is not None and self.operations > self._fail_after:
            raise RuntimeError("metrics are switched off")


class _Family:
    def __init__(self, owner: FakeMetrics, name: str, kind: str) -> None:
        self.owner, self.name, self.kind = owner, name, kind

    def Metric(self, labels: dict[str, str]) -> _Metric:
        self.owner.touch()
        return _Metric(self, tuple(labels.items()))

    def __del__(self) -> None:
        self.owner.gone.append(f"family {self.name}")


class _Metric:
    def __init__(self, family: _Family, labels: tuple[tuple[str, str], ...]) -> None:
        self.family, self.key = family, (family.name, labels)
        family.owner.values[self.key] += 0

    def increment(self, amount: float) -> None:
        assert self.family.kind == FakeMetrics.COUNTER and amount > 0
        self.family.owner.touch()
        self.family.owner.values[self.key] += amount

    def set(self, value: float) -> None:
        assert self.family.kind == FakeMetrics.GAUGE
        self.family.owner.touch()
        self.family.owner.values[self.key] = value

    def __del__(self) -> None:
        self.family.owner.gone.append("metric")


def make_utils(fake: FakeMetrics) -> Any:
    utils = Utils()
    utils.MetricFamily = fake
    return utils


@pytest.mark.parametrize("period_s", [0.001, ENDLESS_S])
def test_everything_arrives_by_the_end_from_one_thread(period_s: float) -> None:
    fake, tally = FakeMetrics(), Tally()
    exporter = MetricsExporter(
        make_utils(fake), metrics.ORCHESTRATOR_METRICS, tally, lambda: [(metrics.RUNNING, (), 7)], period_s
    )
    exporter.start()
    for _ in range(300):
        tally.add([(metrics.ROUNDS, ("model",), 1), (metrics.DRAFTS, (), 2)], [(metrics.DRAFT_LENGTH, 2)])
    exporter.close()
    assert fake.values["spec_decode_rounds_total", (("source", "model"),)] == 300
    assert fake.values["spec_decode_num_drafts_total", ()] == 600
    assert fake.values["spec_decode_draft_length_bucket", (("le", "2"),)] == 300
    assert fake.values["spec_decode_draft_length_bucket", (("le", "1"),)] == 0
    assert fake.values["spec_decode_requests_running", ()] == 7
    assert fake.threads == {"metrics"}
    metrics_gone = [name == "metric" for name in fake.gone]
    assert metrics_gone == sorted(metrics_gone, reverse=True), "a family went before its metrics"
    assert len(metrics_gone) > 60


def test_what_does_not_change_costs_nothing() -> None:
    fake, tally, asked = FakeMetrics(), Tally(), threading.Semaphore(0)

    def gauges() -> list[Any]:
        asked.release()
        return [(metrics.RUNNING, (), 3)]

    exporter = MetricsExporter(make_utils(fake), metrics.ORCHESTRATOR_METRICS, tally, gauges, 0.001)
    exporter.start()
    for _ in range(3):
        assert asked.acquire(timeout=5)
    operations = fake.operations
    for _ in range(20):
        assert asked.acquire(timeout=5)
    assert fake.operations == operations
    exporter.close()


def test_a_server_without_metrics_serves_on() -> None:
    for fail_after in (0, 100):
        utils = make_utils(FakeMetrics(fail_after))
        exporter = MetricsExporter(utils, metrics.ORCHESTRATOR_METRICS, Tally(), lambda: [(metrics.RUNNING, (), 1)], 9)
        exporter.start()
        exporter.close()
        assert utils.Logger.lines == ["no more metrics from this process: RuntimeError: metrics are switched off"]


class Pool(Model):
    def kv_blocks(self) -> KvBlocks:
        return KvBlocks(free=5, cached=2, used=1)


@pytest.mark.parametrize(("model", "known"), [(Pool(), True), (Model(), False)])
def test_a_step_model_reports_its_pool(model: StepModel, known: bool) -> None:
    fake = FakeMetrics()
    server = StepServer(model, make_utils(fake), "target")
    request = call()
    server.execute([request])
    assert isinstance(model, Model)
    model.futures["a"].set_result(StepResult((5,), kv=KvUse(alloc_new_blocks=2, reused_blocks=3)))
    request.sender.wait()
    server.close()
    target = (("model", "target"),)
    assert fake.values["spec_decode_kv_reused_blocks_total", target] == 3
    assert fake.values["spec_decode_kv_new_blocks_total", target] == 2
    states = {dict(labels)["state"]: n for (name, labels), n in fake.values.items() if name == "spec_decode_kv_blocks"}
    assert states == ({"free": 5, "cached": 2, "used": 1} if known else {})
