"""OpenTelemetry in Triton: its flags, and the context that it gives a request.

Source: Triton user guide, "Tracing", and python_backend README, "Request tracing" (`get_context`); release 24.10.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from pipeline.spec import DeploymentSpec
from pipeline.tracing.exporter import SpanExporter
from pipeline.tracing.request_spans import RequestSpans
from pipeline.tracing.span import SpanContext


def trace_flags(spec: DeploymentSpec) -> tuple[str, ...]:
    """Of tritonserver: it samples, and sends its own spans to the same collector."""
    if spec.otlp.url is None:
        return ()
    return (
        "--trace-config=mode=opentelemetry",
        f"--trace-config=opentelemetry,url={spec.otlp.url}",
        f"--trace-config=opentelemetry,resource=service.name={spec.name}",
        f"--trace-config=rate={spec.otlp.every}",
        "--trace-config=level=TIMESTAMPS",
    )


class Tracer:
    """Spans of the requests that Triton traces.

    Args:
        exporter: takes them.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    @classmethod
    def of(cls, spec: DeploymentSpec) -> Tracer | None:
        """None where the spec names no collector."""
        return None if spec.otlp.url is None else cls(SpanExporter(spec.otlp.url, spec.name))

    def start(self, request: Any, waited_s: float) -> RequestSpans | None:
        """The spans of a `pb_utils.InferenceRequest`; None where Triton has not sampled it."""
        parent = None
        with suppress(Exception):  # a request must not fail of its trace
            trace = request.trace()
            context = None if trace is None else trace.get_context()
            parent = SpanContext.parse(json.loads(context)["traceparent"]) if context else None
        return None if parent is None else RequestSpans(self._exporter, parent, request.request_id(), waited_s)

    def close(self) -> None:
        """Send what waits."""
        self._exporter.close()
