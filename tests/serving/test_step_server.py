"""The step server: FINAL exactly once, whatever happens."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from pipeline.engine.step import StepModel, StepRequest, StepResult
from pipeline.errors import EngineError, StepError
from pipeline.serving.backend import ModelArguments, load_factory
from pipeline.serving.request_tensors import encode_request, encode_stop
from pipeline.serving.step_server import StepServer

from .fakes import Request, Sender, Utils


class Model(StepModel):
    def __init__(self) -> None:
        self.futures: dict[str, Future[StepResult]] = {}
        self.stopped: list[str] = []

    def submit(self, request: StepRequest) -> Future[StepResult]:
        if request.request_id == "explode":
            raise RuntimeError("scripted bug")
        return self.futures.setdefault(request.request_id, Future())

    def stop(self, request_id: str) -> None:
        self.stopped.append(request_id)

    def close(self) -> None:
        for future in self.futures.values():
            if not future.done():
                future.set_exception(StepError("the engine was closed"))


def call(request_id: str = "a", sender: Sender | None = None, **changes: Any) -> Request:
    encoded = encode_request(StepRequest(request_id, (1, 2), 1))
    tensors = {**encoded.tensors, **changes}
    return Request(tensors, encoded.parameters, request_id, encoded.outputs, sender)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def server(model: Model) -> StepServer:
    return StepServer(model, Utils())


def test_answers_come_when_results_do(server: StepServer, model: Model) -> None:
    first, second = call("a"), call("b")
    assert server.execute([first, second]) is None
    assert not first.sender.done.is_set()
    model.futures["b"].set_result(StepResult((5,)))
    assert second.sender.wait()[0].arrays()["output_ids"].tolist() == [[[5]]]
    assert not first.sender.done.is_set()
    model.futures["a"].set_result(StepResult((6,)))
    assert first.sender.wait()[0].arrays()["output_ids"].tolist() == [[[6]]]


def test_errors_are_answers(server: StepServer, model: Model) -> None:
    failed, bug, bad = call("a"), call("explode"), call("c", input_lengths=encode_stop().tensors["input_lengths"])
    server.execute([failed, bug, bad])
    model.futures["a"].set_exception(StepError("out of blocks"))
    assert failed.sender.wait()[0].error().message() == "[INTERNAL] out of blocks"
    assert bug.sender.wait()[0].error().message() == "[INTERNAL] RuntimeError: scripted bug"
    error = bad.sender.wait()[0].error()
    assert error.message() == "[INVALID_ARGUMENT] input_lengths = 1: input_ids holds 2 tokens"
    assert error.code == "invalid"


def test_a_response_that_cannot_be_sent_harms_no_other(server: StepServer, model: Model) -> None:
    """More failing sends than there are sending threads; the next call is still answered."""
    failing = [call(f"f{number}", Sender(fail_sends=1)) for number in range(4)]
    good = call("good")
    server.execute([*failing, good])
    for number in range(4):
        model.futures[f"f{number}"].set_result(StepResult((5,)))
    model.futures["good"].set_result(StepResult((5,)))
    assert len(good.sender.wait()) == 1


def test_cancelled_future(server: StepServer, model: Model) -> None:
    request = call("a")
    server.execute([request])
    model.futures["a"].cancel()
    assert "cancelled" in request.sender.wait()[0].error().message()


def test_stop(server: StepServer, model: Model) -> None:
    encoded = encode_stop()
    request = Request(encoded.tensors, request_id="running", outputs=encoded.outputs)
    server.execute([request])
    assert request.sender.wait()[0].arrays()["sequence_length"].tolist() == [[0]]
    assert model.stopped == ["running"]


def test_close_answers_what_runs(server: StepServer) -> None:
    requests = [call("a"), call("b")]
    server.execute(requests)
    server.close()
    for request in requests:
        assert request.sender.wait()[0].error().message() == "[INTERNAL] the engine was closed"


def test_arguments() -> None:
    config = '{"parameters": {"threads": {"string_value": "2"}}}'
    arguments = ModelArguments.from_triton(
        {"model_config": config, "model_name": "target", "model_repository": "repo/target", "model_version": "1"}
    )
    assert arguments.parameter("threads") == "2" and arguments.version_dir.name == "1"
    with pytest.raises(EngineError, match="model target lacks the parameter engine_dir"):
        arguments.parameter("engine_dir")


@pytest.mark.parametrize("reference", ["no.such.module:f", "json:nothing", "json", "json:__name__"])
def test_factories_that_cannot_be_loaded(reference: str) -> None:
    with pytest.raises(EngineError, match=reference):
        load_factory(reference)
