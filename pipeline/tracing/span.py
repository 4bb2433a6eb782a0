"""Spans, and the JSON that a collector takes.

Source: OpenTelemetry protocol 1.x, "OTLP/HTTP", JSON encoding (ids in hex, 64-bit integers as texts); W3C Trace Context
for `traceparent`. The format is small enough to need no library, which would be in the process that decodes; Triton's
own exporter speaks this JSON too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Value = str | bool | int | float

SCOPE = "specdec"
_INTERNAL = 1  # SpanKind
_ERROR = 2  # StatusCode
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True)
class SpanContext:
    """Which trace and which span: lower-case hex, 32 and 16 digits."""

    trace_id: str
    span_id: str

    @classmethod
    def parse(cls, traceparent: str) -> SpanContext | None:
        """Of a W3C `traceparent`; None where it is malformed, or its caller does not record."""
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None or not int(match[3], 16) & 1 or not int(match[1], 16) or not int(match[2], 16):
            return None
        return cls(match[1], match[2])

    def child(self) -> SpanContext:
        """A new span of the same trace."""
        return SpanContext(self.trace_id, os.urandom(8).hex())


@dataclass(frozen=True)
class Span:
    """What happened between two times.

    Attributes:
        context: its own.
        parent_id: of the span that it is part of.
        start_ns, end_ns: Unix time in nanoseconds.
        error: what went wrong, or None.
    """

    name: str
    context: SpanContext
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "traceId": self.context.trace_id,
            "spanId": self.context.span_id,
            "parentSpanId": self.parent_id,
            "name": self.name,
            "kind": _INTERNAL,
            "startTimeUnixNano": str(self.start_ns),
            "endTimeUnixNano": str(self.end_ns),
            "attributes": attributes_json(self.attributes),
            "status": {} if self.error is None else {"code": _ERROR, "message": self.error},
        }


def attributes_json(attributes: Mapping[str, Value]) -> list[dict[str, Any]]:
    """KeyValue list."""
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def export_json(spans: Sequence[Span], service: str) -> dict[str, Any]:
    """ExportTraceServiceRequest of one service."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": attributes_json({"service.name": service})},
                "scopeSpans": [{"scope": {"name": SCOPE}, "spans": [span.to_json() for span in spans]}],
            }
        ]
    }


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}
