"""What tests of faults measure: gauges, what processes hold, and a bystander whose answer must not suffer."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from pipeline.metrics import catalogue as metrics
from pipeline.metrics.catalogue import Metric
from pipeline.serving.server import TritonServer
from pipeline.serving.shared_memory import group_members, regions

from .real_loop import text
from .support import GrpcStream, http_generate

BOUND_S = 30.0
MODELS = ("target", "draft")
# What may come and go for reasons of its own: connections of earlier clients, threads for stops.
SLACK = {"threads": 8, "files": 8, "shared": 2 << 20}


def eventually(condition: Callable[[], object], what: str, timeout_s: float = BOUND_S) -> None:
    """Wait for it, with a bound."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s:g} s: {what}"
        time.sleep(0.05)


def value(server: TritonServer, metric: Metric, **labels: str) -> float:
    """Of one series now, summed over the labels that are not given; 0 where there is none yet."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=5) as response:
        body = response.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
        if sample.name == metric.name and labels.items() <= sample.labels.items()
    )


def used(server: TritonServer, model: str) -> float:
    """KV blocks that calls of a model hold."""
    return value(server, metrics.KV_BLOCKS, model=model, state="used")


@dataclass(frozen=True)
class Held:
    """What the processes of a server hold: threads, open files and bytes of shared memory."""

    threads: int
    files: int
    shared: int

    @classmethod
    def by(cls, server: TritonServer) -> Held:
        assert server.pid is not None
        threads = files = 0
        for process in group_members(server.pid):
            try:
                threads, files = threads + process.num_threads(), files + process.num_fds()
            except psutil.Error:
                continue
        return cls(threads, files, sum(path.stat().st_size for path in regions(server.pid)))

    def beyond(self, before: Held) -> list[str]:
        """What is more than it was."""
        return [
            f"{name}: {getattr(self, name)} after {getattr(before, name)}"
            for name, slack in SLACK.items()
            if getattr(self, name) > getattr(before, name) + slack
        ]


def at_rest(server: TritonServer) -> None:
    """Nothing runs, waits, holds blocks or was given up."""

    def quiet() -> bool:
        gauges = [value(server, gauge) for gauge in (metrics.RUNNING, metrics.WAITING, metrics.ABANDONED)]
        return not any(gauges) and not any(used(server, model) for model in MODELS)

    eventually(quiet, "something still runs or holds blocks")


def nothing_leaked(server: TritonServer, before: Held) -> None:
    at_rest(server)
    eventually(lambda: not Held.by(server).beyond(before), f"leaked: {Held.by(server).beyond(before)}")


def serves(server: TritonServer, drafting: bool = True) -> None:
    """A request is answered, and drafted, without anybody's help."""

    def answered() -> bool:
        body = {"text_input": "a", "max_tokens": 20, "num_draft_tokens": 3}
        status, answer = http_generate(server.http_address, body)
        assert status == 200 and answer["text_output"] == "a" + text("a", 20), answer
        return not drafting or bool(json.loads(answer["spec_decode_stats"])["rounds_by_source"].get("model"))

    eventually(answered, "nothing is drafted")


@contextmanager
def bystander(server: TritonServer, tokens: int = 60) -> Iterator[None]:
    """Another client's stream during the block: it must end with its own text."""
    stream = GrpcStream(server.grpc_address)
    try:
        stream.send({"text_input": "slow q", "max_tokens": tokens, "stream": True}, "bystander")
        first = stream.events.get(timeout=BOUND_S)
        stream.events.put(first)
        yield
        answer = stream.answers(1, BOUND_S)
        assert "".join(answer["bystander"].texts) == text("q", tokens), answer
    finally:
        stream.close()


def open_http_stream(server: TritonServer, body: dict[str, Any], receive_bytes: int | None = None) -> socket.socket:
    """A POST to /generate_stream of which nothing has been read."""
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(BOUND_S)
    connection.connect(("127.0.0.1", server.ports.http))
    payload = json.dumps(body)
    connection.sendall(
        f"POST /v2/models/spec_decode/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n"
        f"Connection: close\r\n\r\n{payload}".encode()
    )
    return connection


def read_http_stream(connection: socket.socket) -> str:
    """The text of everything that comes until the server closes."""
    body = b""
    while True:
        piece = connection.recv(4096)
        body += piece
        if not piece or re.search(rb"data: [^\n]*finish_reason[^\n]*\n", body):
            break
    events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    return "".join(json.loads(event)["text_output"] for event in events)
