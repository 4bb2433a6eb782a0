"""Faults in a real Triton: no wrong text, no hang, nothing leaked, others unaffected, service back by itself."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.metrics import catalogue as metrics
from pipeline.serving.repository import RepositoryOptions
from pipeline.serving.server import TritonServer
from pipeline.spec import ROOT

from .conftest import stop_and_check
from .fault_support import (
    BOUND_S,
    Held,
    at_rest,
    bystander,
    eventually,
    nothing_leaked,
    open_http_stream,
    read_http_stream,
    serves,
    used,
    value,
)
from .faulty_models import BIG, POOL_TOKENS
from .real_loop import text
from .support import GrpcStream, http_generate, make_spec, scripted_server

pytestmark = pytest.mark.served

FAULTY = RepositoryOptions(
    step_model_factory="faulty_models:step_model", orchestrator_factory="faulty_models:orchestrator"
)
RUN, WAIT = 8, 16
# Deadlines far above the bounds of the tests: what ends in time was not ended by them.
SPEC = make_spec(
    controller={"kind": "fixed", "k": 4},
    deadlines={"target_s": 300, "draft_s": 300},
    limits={"max_requests": RUN, "max_queue": WAIT},
)
SHORT = 2000
IN_FLIGHT = 12


def ask_all(server: TritonServer, requests: list[dict[str, Any]], window: int = IN_FLIGHT) -> dict[str, str]:
    """Texts, or errors, of requests on one stream, so many at a time."""
    stream, found = GrpcStream(server.grpc_address), {}
    try:
        for index, values in enumerate(requests):
            stream.send({"stream": False, "exclude_input_in_output": True, **values}, str(index))
            if index >= window:
                found.update(stream.answers(1, BOUND_S))
        found.update(stream.answers(min(window, len(requests)), BOUND_S))
    finally:
        stream.close()
    return {name: answer.error or "".join(answer.texts) for name, answer in found.items()}


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TritonServer, Held]]:
    """A server at its full size: every thread has been started, every region has grown."""
    server = scripted_server(tmp_path_factory.mktemp("faults"), SPEC, FAULTY)
    server.start()
    try:
        server.wait_ready(60)
        server.wait_inference(prompt="a", max_tokens=3, num_draft_tokens=1)
        requests = [{"text_input": "slow a", "max_tokens": 30, "temperature": t % 2 * 1.0} for t in range(IN_FLIGHT)]
        ask_all(server, requests)
        at_rest(server)
        yield server, Held.by(server)
    finally:
        stop_and_check(server)


@pytest.fixture
def server(loop: tuple[TritonServer, Held]) -> Iterator[TritonServer]:
    """After the test it must serve as before, and hold no more."""
    server, before = loop
    yield server
    serves(server)
    nothing_leaked(server, before)


@pytest.mark.parametrize("fault", ["error", "ids", "negative", "nan", "impossible"])
def test_draft_answers_nonsense(server: TritonServer, fault: str) -> None:
    """The request goes on plainly with the same text, and says so; greedy drafts have no laws that could be wrong."""
    failures = value(server, metrics.DRAFT_FAILURES)
    temperature = 1.0 if fault in ("nan", "impossible") else 0.0
    with bystander(server):
        serves(server)  # the draft is not resting
        prompt = f"draft:{fault} m"
        body = {"text_input": prompt, "max_tokens": 40, "temperature": temperature}
        status, answer = http_generate(server.http_address, body)
        assert status == 200 and answer["text_output"] == prompt + text("m", 40), answer
        assert json.loads(answer["spec_decode_stats"])["draft_failures"] >= 1
    eventually(lambda: value(server, metrics.DRAFT_FAILURES) > failures, "no failure was counted")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("error", "scripted failure"),
        ("ids", "the target returned token 262: a token id must be in [0, 257)"),
        ("negative", "the target returned token -5: a token id must be in [0, 257)"),
        ("nan", "the target returned a log-probability that is not a number"),
    ],
)
def test_target_answers_nonsense(server: TritonServer, fault: str, message: str) -> None:
    """A clear error, and no text."""
    with bystander(server):
        body = {"text_input": f"target:{fault} m", "max_tokens": 10, "return_log_probs": True}
        status, answer = http_generate(server.http_address, body)
        assert status >= 400 and message in answer["error"], answer


# One request in every phase; two big ones fill the pool, so that the last one waits for admission.
PHASES = ("draft:hold d", "target:hold-first f", "target:hold-verify v", "target:crawl s", "target:hold-first w")


def in_every_phase(server: TritonServer) -> None:
    """Wait until the requests are where they should be."""
    eventually(lambda: used(server, "draft") == 1, "no draft call")
    eventually(lambda: used(server, "target") == 2, "no first round and no verify")
    eventually(lambda: value(server, metrics.WAITING) == 1, "nobody waits for admission")


def fill(stream: GrpcStream) -> None:
    for index, prompt in enumerate(PHASES):
        stream.send({"text_input": prompt, "max_tokens": 90, "stream": True}, str(index))


def test_client_cancels_in_every_phase(server: TritonServer) -> None:
    cancelled = value(server, metrics.CANCELLATIONS)
    with bystander(server, 120):
        stream = GrpcStream(server.grpc_address)
        fill(stream)
        in_every_phase(server)
        stream.close(cancel=True)
        eventually(lambda: value(server, metrics.CANCELLATIONS) == cancelled + len(PHASES), "not all were cancelled")


def test_client_process_is_killed_in_every_phase(server: TritonServer) -> None:
    cancelled = value(server, metrics.CANCELLATIONS)
    command = [sys.executable, "-m", "tests.serving.doomed_client", server.grpc_address, "90", *PHASES]
    with bystander(server, 120):
        client = subprocess.Popen(command, cwd=ROOT)
        try:
            in_every_phase(server)
        finally:
            client.kill()
            client.wait()
        eventually(lambda: value(server, metrics.CANCELLATIONS) == cancelled + len(PHASES), "not all were cancelled")


def test_http_client_leaves_a_stream(server: TritonServer) -> None:
    """Triton hears of it when it next writes."""
    cancelled = value(server, metrics.CANCELLATIONS)
    with bystander(server):
        connection = open_http_stream(server, {"text_input": "slow h", "max_tokens": 400, "stream": True})
        assert b"text_output" in connection.recv(4096) + connection.recv(4096)
        connection.close()
        eventually(lambda: value(server, metrics.CANCELLATIONS) == cancelled + 1, "it was not noticed")


@pytest.mark.parametrize("prompt", PHASES[:3])
def test_http_client_leaves_where_nothing_is_written(server: TritonServer, prompt: str) -> None:
    """Nobody can notice it: the request's own deadline ends it."""
    with bystander(server):
        body = {"text_input": prompt, "max_tokens": 30, "stream": True, "timeout": 1_000_000}
        connection = open_http_stream(server, body)
        eventually(lambda: used(server, "draft") + used(server, "target") == 1, "the call is not held")
        connection.close()
        at_rest_but = lambda: used(server, "draft") + used(server, "target") == 0  # noqa: E731
        eventually(at_rest_but, "the call was not stopped")


def test_kv_exhausted(server: TritonServer) -> None:
    """Two fit, ten wait; one that never fits is refused by name."""
    with bystander(server):
        status, answer = http_generate(server.http_address, {"text_input": "m", "max_tokens": 2 * POOL_TOKENS})
        assert status >= 400 and f"the KV pool holds {POOL_TOKENS} tokens" in answer["error"], answer
    texts = ask_all(server, [{"text_input": chr(ord("a") + i), "max_tokens": BIG} for i in range(IN_FLIGHT)])
    assert texts == {str(i): text(chr(ord("a") + i), BIG) for i in range(IN_FLIGHT)}


def test_queue_full_and_clients_that_leave_it(server: TritonServer) -> None:
    """All threads are held and all places taken: refused with a retryable error; who leaves gives his place back."""
    refused = value(server, metrics.REFUSALS, code="UNAVAILABLE")
    holders, waiters = GrpcStream(server.grpc_address), GrpcStream(server.grpc_address)
    for index in range(RUN):
        holders.send({"text_input": "target:hold-first x", "max_tokens": 20, "stream": True}, str(index))
    eventually(lambda: used(server, "target") == RUN, "not all run")
    for _ in range(2):  # the second time only if the first gave their places back
        for index in range(WAIT):
            waiters.send({"text_input": "b", "max_tokens": 20, "stream": True}, str(index))
        eventually(lambda: value(server, metrics.WAITING) == WAIT, "not all wait")
        status, answer = http_generate(server.http_address, {"text_input": "c", "max_tokens": 20})
        assert status >= 400 and f"[UNAVAILABLE] {RUN} requests run and {WAIT} wait" in answer["error"], answer
        waiters.close(cancel=True)
        eventually(lambda: value(server, metrics.WAITING) == 0, "who left still waits")
        waiters = GrpcStream(server.grpc_address)
    waiters.close()
    holders.close(cancel=True)
    eventually(lambda: value(server, metrics.REFUSALS, code="UNAVAILABLE") == refused + 2, "refusals")


def test_thousands_of_short_requests(server: TritonServer) -> None:
    letters = [chr(ord("a") + index % 26) for index in range(SHORT)]
    texts = ask_all(server, [{"text_input": letter, "max_tokens": 1 + i % 2} for i, letter in enumerate(letters)])
    assert texts == {str(i): text(letter, 1 + i % 2) for i, letter in enumerate(letters)}


def test_slow_reader(server: TritonServer) -> None:
    """Who reads nothing holds neither blocks nor a thread, and finds his whole text later."""
    body = {"text_input": "r", "max_tokens": 400, "stream": True, "return_perf_metrics": True}
    ended = value(server, metrics.ANSWERS, finish_reason="length")
    connection = open_http_stream(server, body, receive_bytes=2048)
    with bystander(server):
        pass
    eventually(lambda: value(server, metrics.ANSWERS, finish_reason="length") == ended + 2, "it did not end")
    at_rest(server)
    assert read_http_stream(connection) == text("r", 400)
    connection.close()


def test_stopped_with_requests_in_flight_and_started_again(tmp_path: Path) -> None:
    """What can end in time ends with its text, the rest with an error; then it is gone, and can be started again."""
    server = scripted_server(tmp_path, SPEC, FAULTY)
    try:
        for _ in range(2):
            server.start()
            server.wait_ready(60)
            server.wait_inference(prompt="a", max_tokens=3, num_draft_tokens=1)
            stream = GrpcStream(server.grpc_address)
            stream.send({"text_input": "slow e", "max_tokens": 40, "stream": True}, "ends")
            stream.send({"text_input": "target:hold-first n", "max_tokens": 40, "stream": True}, "never")
            eventually(lambda: used(server, "target") == 1, "it does not run")
            stopping = threading.Thread(target=stop_and_check, args=(server,))
            stopping.start()
            answers = stream.answers(2, BOUND_S)
            assert "".join(answers["ends"].texts) == text("e", 40) and answers[""].error is not None, answers
            stopping.join(BOUND_S)
            assert not stopping.is_alive() and not server.running
            stream.close()
    finally:
        stop_and_check(server)
