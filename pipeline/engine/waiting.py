"""Waiting for a step model with a bound: an engine that died or hangs never answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from pipeline.engine.step import StepModel, StepRequest, StepResult
from pipeline.errors import CancelledError, RequestTimeoutError, StepTimeoutError

LOOK_S = 0.05  # how often a caller that waits looks whether its answer is still wanted


def wanted() -> None:
    """The check of a call that is wanted whatever happens."""


def call(
    step_model: StepModel, request: StepRequest, deadline_s: float, role: str, check: Callable[[], None] = wanted
) -> StepResult:
    """The result of a call, or an error at its deadline; the engine is asked to stop what nobody waits for.

    Args:
        deadline_s: seconds after which the call is abandoned.
        role: of the engine, for the error.
        check: raises CancelledError or RequestTimeoutError when the request is no longer wanted.

    Raises:
        StepTimeoutError: no answer in `deadline_s` seconds.
        StepError: the call failed.
        CancelledError, RequestTimeoutError: from `check`.
    """
    return wait(step_model, request.request_id, step_model.submit(request), deadline_s, role, check)


def wait(
    step_model: StepModel,
    request_id: str,
    future: Future[StepResult],
    deadline_s: float,
    role: str,
    check: Callable[[], None] = wanted,
) -> StepResult:
    """The result of a call that was submitted, or an error `deadline_s` seconds from now.

    Raises:
        As `call`.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            return future.result(timeout=max(0.0, min(LOOK_S, deadline - time.monotonic())))
        except FutureTimeoutError:
            if future.done():
                return future.result()
        try:
            check()
            if time.monotonic() >= deadline:
                raise StepTimeoutError(f"the {role} did not answer within {deadline_s:g} s; the call was abandoned")
        except (CancelledError, RequestTimeoutError, StepTimeoutError):
            # A slow engine would go on computing what nobody waits for, and one that has not begun would begin.
            future.cancel()
            step_model.stop(request_id)
            raise
