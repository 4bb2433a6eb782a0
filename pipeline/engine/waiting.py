"""Waiting for a step model with a bound: an engine that died or hangs never answers."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError

from pipeline.engine.step import StepModel, StepRequest, StepResult
from pipeline.errors import StepTimeoutError


def call(step_model: StepModel, request: StepRequest, deadline_s: float, role: str) -> StepResult:
    """The result of a call, or an error at its deadline.

    Raises:
        StepTimeoutError: no answer in `deadline_s` seconds; the engine is asked to stop the call.
        StepError: the call failed.
    """
    future = step_model.submit(request)
    try:
        return future.result(timeout=deadline_s)
    except FutureTimeoutError:
        if future.done():
            return future.result()
        # A slow engine would go on computing what nobody waits for.
        step_model.stop(request.request_id)
        raise StepTimeoutError(f"the {role} did not answer within {deadline_s:g} s; the call was abandoned") from None
