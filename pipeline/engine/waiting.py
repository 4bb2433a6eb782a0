"""Waiting for a step model with a bound: an engine that died or hangs never answers."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from pipeline.engine.step import StepModel, StepRequest, StepResult
from pipeline.errors import StepTimeoutError


def call(step_model: StepModel, request: StepRequest, deadline_s: float, role: str) -> StepResult:
    """The result of a call, or an error at its deadline.

    Raises:
        StepTimeoutError: no answer in `deadline_s` seconds; the engine is asked to stop the call.
        StepError: the call failed.
    """
    return wait(step_model, request.request_id, step_model.submit(request), deadline_s, role)


def wait(
    step_model: StepModel, request_id: str, future: Future[StepResult], deadline_s: float, role: str
) -> StepResult:
    """The result of a call that was submitted, or an error `deadline_s` seconds from now.

    Raises:
        StepTimeoutError, StepError: as `call`.
    """
    try:
        return future.result(timeout=deadline_s)
    except FutureTimeoutError:
        if future.done():
            return future.result()
        # A slow engine would go on computing what nobody waits for.
        step_model.stop(request_id)
        raise StepTimeoutError(f"the {role} did not answer within {deadline_s:g} s; the call was abandoned") from None
