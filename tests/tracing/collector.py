"""A collector on 127.0.0.1: keeps the spans that are posted to it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """One span as it arrived."""

    service: str
    scope: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    status: dict[str, Any]


class Collector:
    """Listens until it is closed."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Received] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
                collector.spans += _received(json.loads(body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def wait(self, wanted: Callable[[list[Received]], bool], timeout_s: float = 20.0) -> list[Received]:
        """The spans, once `wanted` is true of them."""
        deadline = time.monotonic() + timeout_s
        while not wanted(self.spans):
            assert time.monotonic() < deadline, f"got {[span.name for span in self.spans]}"
            time.sleep(0.02)
        return list(self.spans)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _received(body: dict[str, Any]) -> list[Received]:
    return [
        Received(
            _attributes(resource["resource"]["attributes"])["service.name"],
            scope["scope"]["name"],
            span["name"],
            span["traceId"],
            span["spanId"],
            span.get("parentSpanId", ""),
            int(span["startTimeUnixNano"]),
            int(span["endTimeUnixNano"]),
            _attributes(span.get("attributes", [])),
            span.get("status", {}),
        )
        for resource in body["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def _attributes(entries: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for entry in entries:
        ((kind, value),) = entry["value"].items()
        found[entry["key"]] = int(value) if kind == "intValue" else value
    return found
