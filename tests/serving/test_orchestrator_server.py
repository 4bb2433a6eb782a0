"""The orchestrator's server: FINAL exactly once, the sender untouched after it, bounded queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pipeline.errors import StepError
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.serving.answer import Answer
from pipeline.serving.generation import encode_chunk
from pipeline.serving.orchestrator_server import OrchestratorServer
from pipeline.serving.workers import WorkerPool

from .fakes import Request, Sender, Utils

END = encode_chunk(Chunk("end", finish_reason="length"))


class Generator:
    """Follows text_input: how many chunks, then how to end; as often as answers are asked for."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.started = threading.Semaphore(0)
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def generate(self, request: GenerationRequest, is_cancelled: Callable[[], bool]) -> Iterator[Chunk]:
        self.started.release()
        for sequence in range(request.num_return_sequences):
            yield from self._answer(request, sequence, is_cancelled)

    def _answer(self, request: GenerationRequest, sequence: int, is_cancelled: Callable[[], bool]) -> Iterator[Chunk]:
        count, _, ending = request.text_input.partition(" ")
        for index in range(int(count)):
            if is_cancelled():
                yield Chunk("", finish_reason="cancelled")
                return
            yield Chunk(f"{index}", (index,), sequence_index=sequence)
        if ending == "wait":
            assert self.release.wait(5)
        elif ending == "fail":
            raise StepError("the target failed")
        elif ending == "bug":
            raise ZeroDivisionError("scripted bug")
        elif ending == "nothing":
            return
        yield Chunk("end", finish_reason="length", sequence_index=sequence)


def ask(text: str, sender: Sender | None = None, **values: Any) -> Request:
    tensors = {"text_input": np.array([text.encode()], np.object_), "stream": np.array([True])}
    return Request({**tensors, **values}, sender=sender)


@pytest.fixture
def generator() -> Generator:
    return Generator()


@pytest.fixture
def server(generator: Generator) -> OrchestratorServer:
    return OrchestratorServer(generator, Utils(), max_requests=2, max_queue=1)


def texts(request: Request) -> list[str]:
    return [response.arrays()["text_output"].item().decode() for response in request.sender.wait()]


def error(request: Request) -> str:
    return request.sender.wait()[-1].error().message()


def test_final_flag_is_on_the_last_chunk(server: OrchestratorServer) -> None:
    request = ask("3")
    assert server.execute([request]) is None
    assert texts(request) == ["0", "1", "2", "end"]


def test_errors_end_the_answer(server: OrchestratorServer) -> None:
    cases = {
        "2 fail": "[INTERNAL] the target failed",
        "0 bug": "[INTERNAL] ZeroDivisionError: scripted bug",
        "1 nothing": "[INTERNAL] the orchestrator ended without a final chunk",
        "": "[INVALID_ARGUMENT] text_input = '': must not be empty",
    }
    for text, message in cases.items():
        request = ask(text)
        server.execute([request])
        assert error(request) == message
    unstreamed = ask("1", stream=np.array([False]))
    server.execute([unstreamed])
    assert "more than one chunk" in error(unstreamed)
    following = ask("0")
    server.execute([following])
    assert texts(following) == ["end"]


def test_cancel(server: OrchestratorServer) -> None:
    request = ask("5")
    request.sender.cancelled = True
    server.execute([request])
    assert error(request).startswith("[CANCELLED]")


def test_sender_is_never_touched_after_final() -> None:
    sender = Sender()
    answer = Answer(Utils(), sender, WorkerPool("outbox", 1))
    assert not answer.is_cancelled()
    answer.send(END, final=True)
    assert answer.is_cancelled()
    answer.send(END, final=True)
    answer.fail(StepError("late"))
    assert len(sender.wait()) == 1


def test_responses_leave_in_order_while_the_request_goes_on() -> None:
    """A send that takes long holds up nobody; what is posted meanwhile follows in order, FINAL last."""
    sender, may_send = Sender(), threading.Event()
    original = sender.send

    def slow(*args: Any, **kwargs: Any) -> None:
        assert may_send.wait(5)
        original(*args, **kwargs)

    sender.send = slow  # type: ignore[method-assign]
    answer = Answer(Utils(), sender, WorkerPool("outbox", 2))
    for index in range(5):
        answer.send({"text_output": np.array([str(index)], np.object_)}, final=False)
        assert not answer.is_cancelled()
    answer.send(END, final=True)
    assert sender.responses == []
    may_send.set()
    sent = [response.arrays()["text_output"].item() for response in sender.wait()]
    assert sent == ["0", "1", "2", "3", "4", END["text_output"].item()]


def test_cancellation_is_heard_by_the_next_round() -> None:
    sender = Sender()
    outbox = WorkerPool("outbox", 1)
    answer = Answer(Utils(), sender, outbox)
    sender.cancelled = True
    answer.is_cancelled()
    asked = threading.Event()
    outbox.submit(asked.set)  # one thread: it comes after the question
    assert asked.wait(5) and answer.is_cancelled()


def test_what_is_said_after_close_still_leaves() -> None:
    sender, outbox = Sender(), WorkerPool("outbox", 1)
    outbox.close()
    Answer(Utils(), sender, outbox).fail(StepError("the server is stopping"))
    assert sender.wait()[0].has_error()


def test_a_final_send_that_fails_harms_nobody_else() -> None:
    """The real sender counts itself closed by then: the answer is lost, the worker that sent it is not."""
    sender = Sender(fail_sends=1)
    outbox = WorkerPool("outbox", 1)
    Answer(Utils(), sender, outbox).send(END, final=True)
    sent = threading.Event()
    outbox.submit(sent.set)
    assert sent.wait(5) and sender.responses == [] and not sender.misused


def test_a_full_queue_refuses_with_unavailable(server: OrchestratorServer, generator: Generator) -> None:
    requests = [ask("0 wait") for _ in range(3)]
    server.execute(requests)
    refused = ask("0")
    server.execute([refused])
    assert error(refused).startswith("[UNAVAILABLE] 2 requests run and 1 wait")
    assert refused.sender.responses[0].error().code == "unavailable"
    generator.release.set()
    for request in requests:
        assert texts(request) == ["end"]


def test_close_refuses_what_waits(server: OrchestratorServer, generator: Generator) -> None:
    running, waiting = [ask("0 wait"), ask("0 wait")], ask("0")
    server.execute(running)
    for _ in running:
        assert generator.started.acquire(timeout=5)
    server.execute([waiting])
    server.close()
    assert error(waiting) == "[UNAVAILABLE] the server is stopping"
    assert generator.closed
    generator.release.set()
    for request in running:
        assert texts(request) == ["end"]


def test_several_answers(server: OrchestratorServer) -> None:
    """Streamed one after another, each response says whose it is, FINAL on the very last; else one response."""
    count = np.array([2], np.int32)
    streamed = ask("2", num_return_sequences=count)
    server.execute([streamed])
    assert texts(streamed) == ["0", "1", "end"] * 2
    index = [response.arrays()["sequence_index"].item() for response in streamed.sender.responses]
    assert index == [0, 0, 0, 1, 1, 1]
    whole = ask("0", num_return_sequences=count, stream=np.array([False]))
    server.execute([whole])
    (response,) = whole.sender.wait()
    assert response.arrays()["text_output"].tolist() == [[b"end", b"end"]]
