"""The BLS adapter over a scripted Triton."""

from __future__ import annotations

import threading
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import numpy as np
import pytest

from pipeline.engine.step import StepRequest
from pipeline.errors import InvalidRequestError, StepError
from pipeline.serving.bls import STOP_THREADS, BlsStepModel
from pipeline.serving.contract import STEP_STATS
from pipeline.serving.dialect import Dialect

from .fakes import InferenceResponse, Tensor, TritonError, Utils


def answer(*ids: int) -> InferenceResponse:
    return InferenceResponse(
        [
            Tensor("output_ids", np.array([[ids]], np.int32)),
            Tensor("sequence_length", np.array([[len(ids)]], np.int32)),
            Tensor(STEP_STATS, np.zeros((1, 8))),
        ]
    )


def connect(execute: Any, **changes: Any) -> BlsStepModel:
    return BlsStepModel("target", Utils(execute), **{"max_calls": 4, "deadline_s": 5.0, **changes})


def test_calls_of_a_process_that_died() -> None:
    """They end at once, later ones go on; the threads they keep are counted until they come back."""
    back, begun = threading.Event(), threading.Semaphore(0)

    def execute(fields: dict[str, Any]) -> InferenceResponse:
        begun.release()
        if fields["request_id"] == "old":
            assert back.wait(10)
        return answer(8)

    model = connect(execute, deadline_s=60.0)
    old = model.submit(StepRequest("old", (7,), 1))
    assert begun.acquire(timeout=5)
    model.fail_running("its process died", begun_before=0.0)
    assert not old.done() and model.abandoned == 0
    model.fail_running("its process died", begun_before=time.monotonic())
    with pytest.raises(StepError, match="model target: its process died during the call"):
        old.result(0)
    assert model.abandoned == 1
    assert model.submit(StepRequest("new", (7,), 1)).result(5).output_ids == (8,)
    back.set()
    deadline = time.monotonic() + 5
    while model.abandoned and time.monotonic() < deadline:
        time.sleep(0.01)
    assert model.abandoned == 0


def test_an_answer_that_overtakes_the_news_of_a_death_leaves_nothing_behind() -> None:
    """The call ends between the look at what runs and its being written off."""
    back, begun = threading.Event(), threading.Event()

    def execute(fields: dict[str, Any]) -> InferenceResponse:
        begun.set()
        assert back.wait(10)
        return answer(8)

    model = connect(execute)
    future = model.submit(StepRequest("call", (7,), 1))
    assert begun.wait(5)

    class Late(dict[Any, float]):
        """Lets the call end after it was listed."""

        def items(self) -> Any:
            listed = list(super().items())
            back.set()
            assert future.result(5).output_ids == (8,)
            return listed

    model._inside = Late(model._inside)  # the running call's own entry is in here
    model.fail_running("its process died", begun_before=time.monotonic())
    assert not model._lost and model.abandoned == 0


def test_call() -> None:
    seen: list[dict[str, Any]] = []
    model = connect(lambda fields: seen.append(fields) or answer(8, 9))
    assert model.submit(StepRequest("id-1", (7,), 2, rule="block", arrival=3)).result(5).output_ids == (8, 9)
    (fields,) = seen
    assert (fields["model_name"], fields["request_id"]) == ("target", "id-1")
    assert fields["parameters"] == {"acceptance_rule": "block", "arrival": 3}
    assert fields["requested_output_names"] == ["output_ids", STEP_STATS]
    model.close()


def test_nvidia_engine_is_asked_for_its_own_outputs() -> None:
    seen: list[dict[str, Any]] = []
    model = connect(lambda fields: seen.append(fields) or answer(8), dialect=Dialect(own_tensors=False))
    model.submit(StepRequest("r", (7,), 1)).result(5)
    assert STEP_STATS not in seen[0]["requested_output_names"]
    assert "total_draft_tokens" in seen[0]["requested_output_names"]
    model.close()


def test_errors_of_the_child_keep_message_and_code() -> None:
    text = "Failed to process the request(s), message: [INVALID_ARGUMENT] input_lengths = 3: too long"
    model = connect(lambda fields: InferenceResponse(error=TritonError(text)))
    with pytest.raises(StepError, match=r"^input_lengths = 3: too long$") as caught:
        model.submit(StepRequest("r", (7,), 1)).result(5)
    assert caught.value.code == "INVALID_ARGUMENT"

    def missing(fields: dict[str, Any]) -> InferenceResponse:
        raise RuntimeError("Model target is not ready.")

    with pytest.raises(StepError, match=r"^model target: Model target is not ready") as caught:
        connect(missing).submit(StepRequest("r", (7,), 1)).result(5)
    assert caught.value.code == "INTERNAL"
    with pytest.raises(InvalidRequestError, match="input_ids"):
        model.submit(StepRequest("r", (), 1)).result(5)


def test_abandoned_calls_are_counted_replaced_and_limited() -> None:
    release = threading.Event()

    def execute(fields: dict[str, Any]) -> InferenceResponse:
        if fields["request_id"] == "hang":
            release.wait(10)
        return answer(1)

    model = connect(execute, max_calls=1, deadline_s=0.05, max_abandoned=2)
    for expected in (1, 2):
        hung = model.submit(StepRequest("hang", (7,), 1))
        with pytest.raises((FutureTimeoutError, TimeoutError)):
            hung.result(0.1)
        assert model.abandoned == expected
        if expected == 1:
            assert model.submit(StepRequest("r", (7,), 1)).result(5).output_ids == (1,)
    with pytest.raises(StepError, match="2 calls to model target never returned"):
        model.submit(StepRequest("r", (7,), 1)).result(5)
    release.set()
    assert hung.result(5).output_ids == (1,)
    deadline = time.monotonic() + 5
    while model.abandoned and time.monotonic() < deadline:
        time.sleep(0.005)
    assert model.submit(StepRequest("r", (7,), 1)).result(5).output_ids == (1,)
    model.close()


def test_stop_and_close() -> None:
    stopped, release, entered = threading.Event(), threading.Event(), threading.Semaphore(0)

    def execute(fields: dict[str, Any]) -> InferenceResponse:
        names = [tensor.name() for tensor in fields["inputs"]]
        if "stop" in names:
            assert fields["request_id"] == "long"
            stopped.set()
        elif fields["request_id"] == "long":
            entered.release()
            release.wait(5)
        return answer(1)

    model = connect(execute, max_calls=2)
    running = model.submit(StepRequest("long", (7,), 1))
    model.stop("long")
    assert stopped.wait(5)
    blocked = model.submit(StepRequest("long", (7,), 1))
    assert entered.acquire(timeout=5) and entered.acquire(timeout=5)
    waiting = model.submit(StepRequest("late", (7,), 1))
    model.close()
    with pytest.raises(StepError, match="closed"):
        waiting.result(5)
    release.set()
    assert running.result(5).output_ids == blocked.result(5).output_ids == (1,)
    with pytest.raises(Exception, match="stopping"):
        model.submit(StepRequest("r", (7,), 1)).result(5)
    model.stop("r")


def test_stops_of_a_hung_child_are_bounded() -> None:
    """Its stops never return: a few threads for them, and calls go on."""
    release, inside = threading.Event(), threading.Semaphore(0)

    def execute(fields: dict[str, Any]) -> InferenceResponse:
        if "stop" in [tensor.name() for tensor in fields["inputs"]]:
            inside.release()
            release.wait(10)
        return answer(1)

    model = connect(execute, max_calls=1)
    for number in range(50):
        model.stop(f"hung-{number}")
    for _ in range(STOP_THREADS):
        assert inside.acquire(timeout=5)
    assert model.submit(StepRequest("r", (7,), 1)).result(5).output_ids == (1,)
    model.close()
    release.set()
    assert not inside.acquire(timeout=0.01)
