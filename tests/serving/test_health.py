"""What the supervisor asks, and how it takes the answers, without a server."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from pipeline.errors import ServerError
from pipeline.serving.contract import SPEC_DECODE_MODEL
from pipeline.serving.health import probe
from pipeline.serving.model_control import ModelControl


def test_a_proxy_never_sees_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment names as proxy is not asked: the server is on this machine, and control has a key."""
    with socket.socket() as proxy, socket.socket() as nobody:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen()
        proxy.setblocking(False)
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ServerError, match="unload of model draft got no answer"):
            ModelControl().reload(f"127.0.0.1:{nobody.getsockname()[1]}", "draft", 5)
        with pytest.raises(BlockingIOError):
            proxy.accept()


@pytest.mark.parametrize(
    ("status", "text", "wrong"),
    [
        (400, "[UNAVAILABLE] 2 requests run and 3 wait, which is the limit; try again later", False),
        (500, "[DEADLINE_EXCEEDED] timeout = 1000000 us: the request's time is up", False),
        (500, "[DEADLINE_EXCEEDED] the target did not answer within 5 s; the call was abandoned", True),
        (500, "[INTERNAL] broken", True),
    ],
)
def test_an_orchestrator_that_says_it_is_busy_lives(status: int, text: str, wrong: bool) -> None:
    """The probe brings a deadline of its own, well below the time it is given: who answers that it is late is there."""
    asked: list[dict[str, Any]] = []

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps({"error": text}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(ServerError, match="answers with an error") if wrong else nullcontext():
            probe(f"127.0.0.1:{server.server_port}", SPEC_DECODE_MODEL, 8.0)
    assert asked[0]["timeout"] == 2_000_000
