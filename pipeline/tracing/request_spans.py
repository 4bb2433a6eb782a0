"""One request as a span, its rounds as the children."""

from __future__ import annotations

import time

from pipeline.orchestrator.statistics import RequestStatistics, RoundRecord
from pipeline.tracing.exporter import SpanExporter
from pipeline.tracing.span import Span, SpanContext, Value

REQUEST_SPAN, ROUND_SPAN = "spec_decode.request", "spec_decode.round"
_NS = 1_000_000_000
_ERROR_CHARS = 300


class RequestSpans:
    """Told by the thread that decodes; hands finished spans on and keeps none.

    Args:
        exporter: takes them.
        parent: the server's span of this request.
        request_id: the client's own name for it, "" for none.
        waited_s: seconds since it arrived.
    """

    def __init__(self, exporter: SpanExporter, parent: SpanContext, request_id: str, waited_s: float) -> None:
        self._exporter = exporter
        self._parent = parent
        self._context = parent.child()
        self._start_ns = time.time_ns() - round(waited_s * _NS)
        self._attributes: dict[str, Value] = {"spec_decode.waited_s": waited_s}
        if request_id:
            self._attributes["spec_decode.request_id"] = request_id[:_ERROR_CHARS]
        self._sums = {"rounds": 0, "drafted": 0, "accepted": 0, "committed": 0}

    def round_ended(self, sequence: int, record: RoundRecord) -> None:
        """A round of an answer of the request has just ended."""
        end_ns = time.time_ns()
        seconds = record.draft_s + record.verify_s + record.overhead_s
        self._exporter.put(
            Span(
                ROUND_SPAN,
                self._context.child(),
                self._context.span_id,
                end_ns - round(seconds * _NS),
                end_ns,
                {
                    "spec_decode.sequence": sequence,
                    "spec_decode.round": record.index,
                    "spec_decode.source": record.source,
                    "spec_decode.reason": record.reason,
                    "spec_decode.k": record.drafted,
                    "spec_decode.accepted": record.accepted,
                    "spec_decode.committed": record.committed,
                    "spec_decode.draft_s": record.draft_s,
                    "spec_decode.verify_s": record.verify_s,
                    "spec_decode.overhead_s": record.overhead_s,
                },
            )
        )

    def answer_ended(self, statistics: RequestStatistics) -> None:
        """An answer has come to its end; sums are over all answers of the request."""
        self._sums["rounds"] += statistics.rounds
        self._sums["drafted"] += statistics.num_draft_tokens
        self._sums["accepted"] += statistics.num_accepted_draft_tokens
        self._sums["committed"] += statistics.committed_tokens
        self._attributes |= {
            "spec_decode.prompt_tokens": statistics.prompt_tokens,
            "spec_decode.finish_reason": statistics.finish_reason,
            "spec_decode.rule": statistics.rule,
        }

    def ended(self, error: str | None = None) -> None:
        """The request is over; with an error, its text."""
        sums = {f"spec_decode.{name}": value for name, value in self._sums.items()}
        self._exporter.put(
            Span(
                REQUEST_SPAN,
                self._context,
                self._parent.span_id,
                self._start_ns,
                time.time_ns(),
                {**self._attributes, **sums},
                None if error is None else error[:_ERROR_CHARS],
            )
        )
