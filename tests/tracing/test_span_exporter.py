"""Spans, their JSON, and the thread that sends them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from pipeline.errors import SpecError
from pipeline.orchestrator.statistics import RoundRecord
from pipeline.spec import DEFAULT_SPEC, DeploymentSpec
from pipeline.tracing.exporter import SpanExporter
from pipeline.tracing.request_spans import RequestSpans
from pipeline.tracing.span import Span, SpanContext
from tests.tracing.collector import Collector

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = SpanContext(TRACE, PARENT)
ROUND = RoundRecord(
    3, "model", "cheapest", drafted=4, accepted=2, committed=3, draft_s=0.1, verify_s=0.2, overhead_s=0.1
)


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.mark.parametrize(
    ("traceparent", "context"),
    [
        (f"00-{TRACE}-{PARENT}-01", CONTEXT),
        (f"00-{TRACE}-{PARENT}-00", None),  # not sampled
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE[:-1]}-{PARENT}-01", None),
        ("", None),
    ],
)
def test_traceparent(traceparent: str, context: SpanContext | None) -> None:
    assert SpanContext.parse(traceparent) == context


def test_a_request_and_its_round(collector: Collector) -> None:
    exporter = SpanExporter(collector.url, "demo", period_s=0.05)
    spans = RequestSpans(exporter, CONTEXT, "mine", 0.5)
    before = time.time_ns()
    spans.round_ended(1, ROUND)
    spans.ended("[INTERNAL] broken")
    exporter.close()
    child, request = collector.spans
    assert (child.service, child.scope, child.trace_id, request.trace_id) == ("demo", "specdec", TRACE, TRACE)
    assert (request.parent_id, child.parent_id) == (PARENT, request.span_id)
    assert len({PARENT, request.span_id, child.span_id}) == 3
    assert child.end_ns - child.start_ns == 400_000_000 and before <= child.end_ns <= time.time_ns()
    assert request.end_ns - request.start_ns >= 500_000_000
    assert request.status == {"code": 2, "message": "[INTERNAL] broken"} and child.status == {}
    assert request.attributes["spec_decode.request_id"] == "mine"
    shown = {name.removeprefix("spec_decode."): value for name, value in child.attributes.items()}
    assert shown["sequence"] == 1 and shown["round"] == 3 and shown["k"] == 4 and shown["accepted"] == 2
    assert (shown["source"], shown["reason"], shown["draft_s"]) == ("model", "cheapest", 0.1)
    assert exporter.dropped == 0


@pytest.mark.parametrize("status", [400, 503])
def test_a_collector_that_refuses_loses_spans_and_nothing_else(status: int) -> None:
    collector = Collector(status)
    exporter = SpanExporter(collector.url, "demo", period_s=0.01)
    for _ in range(3):
        exporter.put(Span("x", CONTEXT.child(), PARENT, 1, 2))
    exporter.close()
    collector.close()
    exporter.put(Span("late", CONTEXT.child(), PARENT, 1, 2))
    assert exporter.dropped == 4


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that hangs holds up one thread, and no request."""
    hanging, going = threading.Event(), threading.Event()

    def post(self: SpanExporter, spans: list[Span]) -> None:
        hanging.set()
        going.wait(10)

    monkeypatch.setattr(SpanExporter, "_post", post)
    exporter = SpanExporter("http://127.0.0.1:9/v1/traces", "demo", period_s=0.0, queue_spans=8)
    exporter.put(Span("x", CONTEXT.child(), PARENT, 1, 2))
    assert hanging.wait(10)
    for _ in range(100):
        exporter.put(Span("x", CONTEXT.child(), PARENT, 1, 2))
    assert exporter.dropped == 100 - 8
    going.set()
    exporter.close()


@pytest.mark.parametrize(
    "url", ["localhost:4318", "ftp://x/v1/traces", "http://x/a,rate=1", "http://user:secret@x/v1/traces", ""]
)
def test_no_address_of_a_collector(url: str) -> None:
    spec = DeploymentSpec.load(DEFAULT_SPEC).model_dump()
    with pytest.raises(SpecError, match=r"otlp\.url: "):
        DeploymentSpec.check({**spec, "otlp": {"url": url}})
