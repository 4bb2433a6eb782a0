"""Requests of a server that traces: our spans are children of Triton's, and agree with what the client was told."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.serving.otlp import trace_flags
from pipeline.serving.server import TritonServer
from pipeline.tracing.request_spans import REQUEST_SPAN, ROUND_SPAN
from tests.tracing.collector import Collector, Received

from .conftest import stop_and_check
from .support import LOOP, GrpcStream, http_generate, make_spec, scripted_server

pytestmark = pytest.mark.served

CALLER_TRACE, CALLER_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HALF_SECOND = "--trace-config=opentelemetry,bsp_schedule_delay=500"  # Triton's own spans: 5 s otherwise


@dataclass(frozen=True)
class Traced:
    """A server and the collector that it was given."""

    server: TritonServer
    collector: Collector

    def ask(self, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        url = f"http://{self.server.http_address}/v2/models/spec_decode/generate"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            found: dict[str, Any] = json.loads(response.read())
        return found

    def spans(self, request_id: str) -> tuple[Received, list[Received]]:
        """Our span of a request, and its rounds in order."""

        def own(spans: list[Received]) -> list[Received]:
            return [span for span in spans if span.attributes.get("spec_decode.request_id") == request_id]

        spans = self.collector.wait(lambda spans: bool(own(spans)))
        (request,) = own(spans)
        rounds = [span for span in spans if span.parent_id == request.span_id]
        return request, sorted(rounds, key=lambda span: span.attributes["spec_decode.round"])


def traced_server(folder: Path, url: str, every: int = 1) -> TritonServer:
    spec = make_spec(controller={"kind": "fixed", "k": 4}, otlp={"url": url, "every": every})
    return scripted_server(folder, spec, LOOP, arguments=(*trace_flags(spec), HALF_SECOND))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    collector = Collector()
    server = traced_server(tmp_path_factory.mktemp("tracing"), collector.url)
    server.start()
    try:
        server.wait_ready(60)
        yield Traced(server, collector)
    finally:
        stop_and_check(server)
        collector.close()


def test_spans_nest_and_agree_with_the_statistics(traced: Traced) -> None:
    """Caller > Triton's request > Triton's model > ours > rounds."""
    body = {"text_input": "a", "max_tokens": 40, "id": "first"}
    answer = traced.ask(body, {"traceparent": f"00-{CALLER_TRACE}-{CALLER_SPAN}-01"})
    stats = json.loads(answer["spec_decode_stats"])
    request, rounds = traced.spans("first")
    assert len(rounds) == stats["rounds"] > 3 and stats["num_draft_tokens"] > stats["num_accepted_draft_tokens"] > 0
    assert {(span.name, span.service, span.scope, span.trace_id) for span in rounds} == {
        (ROUND_SPAN, "scripted", "specdec", CALLER_TRACE)
    }

    def total(name: str) -> float:
        return sum(span.attributes[f"spec_decode.{name}"] for span in rounds)

    assert total("k") == stats["num_draft_tokens"] == request.attributes["spec_decode.drafted"]
    assert total("accepted") == stats["num_accepted_draft_tokens"] == request.attributes["spec_decode.accepted"]
    assert total("committed") == stats["committed_tokens"] == request.attributes["spec_decode.committed"] == 40
    assert total("draft_s") == pytest.approx(stats["draft_s"]) and total("verify_s") == pytest.approx(stats["verify_s"])
    found: dict[str, int] = {}
    for span in rounds:
        reason = span.attributes["spec_decode.reason"]
        found[reason] = found.get(reason, 0) + 1
        assert request.start_ns <= span.start_ns <= span.end_ns <= request.end_ns
    assert found == stats["decisions"]
    assert request.name == REQUEST_SPAN and request.attributes["spec_decode.finish_reason"] == "length"
    spans = traced.collector.wait(
        lambda spans: any(span.name == "InferRequest" and span.trace_id == CALLER_TRACE for span in spans)
    )
    by_id = {span.span_id: span for span in spans}
    model = by_id[request.parent_id]
    assert (model.scope, model.name, model.service) == ("triton-server", "spec_decode", "scripted")
    assert by_id[model.parent_id].name == "InferRequest" and by_id[model.parent_id].parent_id == CALLER_SPAN


def test_several_answers_over_grpc_are_one_request(traced: Traced) -> None:
    stream = GrpcStream(traced.server.grpc_address)
    stream.send({"text_input": "b", "max_tokens": 6, "num_return_sequences": 2, "num_draft_tokens": 0}, "two")
    stream.answers(1)
    stream.close()
    request, rounds = traced.spans("two")
    assert {span.attributes["spec_decode.sequence"] for span in rounds} == {0, 1}
    assert request.attributes["spec_decode.committed"] == 12 and request.attributes["spec_decode.drafted"] == 0
    assert request.attributes["spec_decode.rounds"] == len(rounds)


def test_a_refused_request_has_a_span_with_its_error(traced: Traced) -> None:
    status, _ = http_generate(traced.server.http_address, {"text_input": "a", "max_tokens": 0, "id": "refused"})
    assert status == 400
    request, rounds = traced.spans("refused")
    assert rounds == [] and request.status == {
        "code": 2,
        "message": "[INVALID_ARGUMENT] max_tokens = 0: must be at least 1",
    }


def test_one_of_many_is_traced_and_a_dead_collector_costs_nothing(tmp_path: Path) -> None:
    """The sampling is Triton's; texts come while nobody listens."""
    collector = Collector()
    server = traced_server(tmp_path, collector.url, every=4)
    server.start()
    try:
        server.wait_ready(60)
        for index in range(8):
            body = {"text_input": "a", "max_tokens": 3, "id": f"r{index}"}
            assert http_generate(server.http_address, body)[1]["text_output"] == "abcd"
        spans = collector.wait(lambda spans: sum(span.name == REQUEST_SPAN for span in spans) >= 2)
        assert sum(span.name == REQUEST_SPAN for span in spans) == 2
        collector.close()
        for _ in range(8):
            assert http_generate(server.http_address, {"text_input": "a", "max_tokens": 3})[1]["text_output"] == "abcd"
    finally:
        stop_and_check(server)
        collector.close()
