"""Sends spans to a collector beside the rounds: one thread, a bounded queue, no error that a request could notice."""

from __future__ import annotations

import http.client
import json
import logging
import queue
import threading
import time
import urllib.request

from pipeline.tracing.span import Span, export_json

QUEUE_SPANS = 8192
BATCH_SPANS = 512
PERIOD_S = 1.0
POST_S = 5.0
CLOSE_S = 3.0

_log = logging.getLogger(__name__)


class SpanExporter:
    """Posts batches; what the queue has no room for, or the collector does not take, is counted and lost.

    Args:
        url: of the collector, with its path (`/v1/traces`).
        service: `service.name`.
        period_s: seconds that a span may wait for others to go with it.
        queue_spans: spans that may wait for the collector.
    """

    def __init__(self, url: str, service: str, period_s: float = PERIOD_S, queue_spans: int = QUEUE_SPANS) -> None:
        self._url = url
        self._service = service
        self._period_s = period_s
        self._queue: queue.Queue[Span | None] = queue.Queue(queue_spans)
        self._lock = threading.Lock()
        self._dropped = 0
        self._failing = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Spans that were lost so far."""
        return self._dropped

    def put(self, span: Span) -> None:
        """Hand over a span. Never waits, never raises."""
        try:
            if self._closed:
                raise queue.Full
            self._queue.put_nowait(span)
        except queue.Full:
            self._drop(1)

    def close(self) -> None:
        """Send what waits, within a bound."""
        self._closed = True
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return  # the collector hangs: the thread ends with the process
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        last = False
        while not last:
            batch = [self._queue.get()]
            deadline = time.monotonic() + self._period_s
            while batch[-1] is not None and len(batch) < BATCH_SPANS:
                try:
                    batch.append(self._queue.get(timeout=max(0.0, deadline - time.monotonic())))
                except queue.Empty:
                    break
            last = batch[-1] is None
            self._post([span for span in batch if span is not None])

    def _post(self, spans: list[Span]) -> None:
        if not spans:
            return
        body = json.dumps(export_json(spans, self._service)).encode()
        try:
            request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=POST_S):
                pass
            self._failing = False
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._drop(len(spans))
            if not self._failing:
                _log.warning("spans cannot be sent to %s: %s; requests go on without them", self._url, error)
            self._failing = True

    def _drop(self, count: int) -> None:
        with self._lock:
            self._dropped += count
