"""Deadlines and priorities of requests in a real Triton, over both doors and in every phase."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pipeline.metrics import catalogue as metrics
from pipeline.serving.server import TritonServer

from .conftest import stop_and_check
from .fault_support import at_rest, eventually, serves, used, value
from .faulty_models import BIG
from .real_loop import text
from .support import GrpcStream, grpc_inputs, http_generate, make_spec, scripted_server
from .test_served_faults import FAULTY

pytestmark = pytest.mark.served

RUN = 4
HOLD = "target:hold-first x"
# A level is a head start of an hour: within a test, no request grows old enough to pass a better one.
SPEC = make_spec(
    controller={"kind": "fixed", "k": 4},
    deadlines={"target_s": 300, "draft_s": 300},
    limits={"max_requests": RUN, "max_queue": 16},
    queue={"head_start_s": 3600, "timeout_s": 8},
)


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    server = scripted_server(tmp_path_factory.mktemp("overload"), SPEC, FAULTY)
    server.start()
    try:
        server.wait_ready(60)
        server.wait_inference(prompt="a", max_tokens=3, num_draft_tokens=1)
        yield server
    finally:
        stop_and_check(server)


@pytest.fixture
def server(loop: TritonServer) -> Iterator[TritonServer]:
    yield loop
    serves(loop)
    at_rest(loop)


def hold(server: TritonServer, count: int, max_tokens: int, held: int = 0) -> GrpcStream:
    """Requests that run until their stream is cancelled, beside so many held ones."""
    stream = GrpcStream(server.grpc_address)
    for index in range(count):
        stream.send({"text_input": HOLD, "max_tokens": max_tokens, "stream": True}, str(index))
    eventually(lambda: used(server, "target") == held + count, "they do not run")
    return stream


@pytest.mark.parametrize(
    ("timeout", "message"),
    [
        (1_500_000, "[DEADLINE_EXCEEDED] timeout = 1500000 us: the request's time is up"),
        (0, "[UNAVAILABLE] the request waited 8 s for its turn, the limit (queue.timeout_s); try again later"),
    ],
    ids=["its own", "the queue's"],
)
def test_deadline_in_line(server: TritonServer, timeout: int, message: str) -> None:
    """Two requests fill the pool: the next two wait for blocks, those behind them for a thread."""
    stream = hold(server, 2, BIG)
    body = {"text_input": "a", "max_tokens": BIG, "timeout": timeout}
    with ThreadPoolExecutor(RUN) as pool:
        answers = list(pool.map(lambda _: http_generate(server.http_address, body), range(RUN)))
    assert all(status >= 400 and message in answer["error"] for status, answer in answers), answers
    stream.close(cancel=True)


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_deadline_in_the_first_round(server: TritonServer, door: str) -> None:
    """There is no token yet: an error. The call is stopped, though the target's deadline is far."""
    values: dict[str, Any] = {"text_input": HOLD, "max_tokens": 20}
    message = "[DEADLINE_EXCEEDED] timeout = 300000 us: the request's time is up"
    if door == "http":
        assert message in http_generate(server.http_address, {**values, "timeout": 300_000})[1]["error"]
    else:  # Triton's own request timeout
        stream = GrpcStream(server.grpc_address)
        stream.client.async_stream_infer("spec_decode", grpc_inputs(values), timeout=300_000)
        assert message in str(stream.answers(1)[""].error)
        stream.close()
    eventually(lambda: used(server, "target") == 0, "the call was not stopped")


def test_deadline_in_mid_stream(server: TritonServer) -> None:
    """What was committed is the beginning of the text, and finish_reason says why it ends."""
    body = {"text_input": "slow e", "max_tokens": 480, "exclude_input_in_output": True, "timeout": 1_000_000}
    status, answer = http_generate(server.http_address, body)
    assert status == 200 and answer["finish_reason"] == "timeout", answer
    assert 0 < len(answer["text_output"]) < 480 and text("e", 480).startswith(answer["text_output"])


@pytest.mark.parametrize("waits_for", ["thread", "blocks"])
def test_priorities(server: TritonServer, waits_for: str) -> None:
    """Who waits is served by level, and first come first served within one."""
    levels: dict[str, dict[str, int]] = {"low": {"priority": 3}, "first": {}, "second": {"priority": 0}}
    # One thread becomes free, and all others stay held: two at once would run a race to the pool.
    kept = hold(server, RUN - 1, 20) if waits_for == "thread" else None
    stream = hold(server, 1, 20, RUN - 1) if kept else hold(server, 2, BIG)
    if waits_for == "blocks":  # two threads are left
        levels = {"low": {"priority": 3}}
    levels["high"] = {"request_priority": 1}
    done: list[str] = []

    def ask(name: str) -> None:
        # One at a time: there is one thread, or each takes more than half of the pool.
        body = {"text_input": "b", "max_tokens": BIG if kept else 2 * BIG, **levels[name]}
        status, answer = http_generate(server.http_address, body)
        done.append(name if status == 200 else str(answer))

    with ThreadPoolExecutor(len(levels)) as pool:
        for count, name in enumerate(levels, 1):
            pool.submit(ask, name)
            eventually(lambda count=count: value(server, metrics.WAITING) == count, f"{name} does not wait")
        stream.close(cancel=True)
    if kept:
        kept.close(cancel=True)
    assert done == [name for name in ("high", "first", "second", "low") if name in levels]


def test_priority_that_does_not_exist(server: TritonServer) -> None:
    for body, message in (
        ({"priority": 4}, "priority = 4: must be a level from 1 (served first) to 3, or 0 for the default"),
        ({"priority": "high"}, "priority = 'high': must be a whole number"),
        ({"priority": 1, "request_priority": 2}, "request_priority = 2: is another name of priority, which is 1"),
        ({"timeout": -1}, "timeout = -1: must be 0 (none) or more microseconds"),
    ):
        status, answer = http_generate(server.http_address, {"text_input": "a", **body})
        assert status == 400 and f"[INVALID_ARGUMENT] {message}" in answer["error"], answer
