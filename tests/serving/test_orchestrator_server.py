"""The orchestrator's server: FINAL exactly once, the sender untouched after it, bounded queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pipeline.errors import StepError
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.serving.generation import encode_chunk
from pipeline.serving.orchestrator_server import Answer, OrchestratorServer

from .fakes import Request, Sender, Utils

END = encode_chunk(Chunk("end", finish_reason="length"))


class Generator:
    """Follows text_input: how many chunks, then how to end; as often as answers are asked for."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.started = threading.Semaphore(0)

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
    answer = Answer(Utils(), sender)
    assert not answer.is_cancelled()
    answer.send(END, final=True)
    assert answer.is_cancelled()
    answer.send(END, final=True)
    answer.fail(StepError("late"))
    assert len(sender.wait()) == 1


def test_a_final_send_that_fails_harms_nobody_else() -> None:
    """The real sender counts itself closed by then: the answer is lost, the worker that sent it is not."""
    sender = Sender(fail_sends=1)
    Answer(Utils(), sender).send(END, final=True)
    assert sender.responses == [] and not sender.misused


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
