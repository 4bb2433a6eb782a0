"""Waiting for a step model with a bound: an engine that died or hangs never answers."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from pipeline.engine.step import StepResult
from pipeline.errors import StepTimeoutError

_lock = threading.Lock()
_abandoned = 0


def wait_for(future: Future[StepResult], deadline_s: float, role: str) -> StepResult:
    """The result of a call, or an error at its deadline.

    Raises:
        StepTimeoutError: no answer in `deadline_s` seconds; the call is abandoned and counted.
        StepError: the call failed.
    """
    try:
        return future.result(timeout=deadline_s)
    except FutureTimeoutError:
        if future.done():
            return future.result()
        global _abandoned
        with _lock:
            _abandoned += 1
        raise StepTimeoutError(f"the {role} did not answer within {deadline_s:g} s; the call was abandoned") from None


def abandoned_calls() -> int:
    """Calls given up in this process; each may hold a thread for ever."""
    return _abandoned
