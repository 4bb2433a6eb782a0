"""Whether a request is still wanted: its client is there, and its own deadline has not passed."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.errors import CancelledError, OverloadedError, RequestTimeoutError

_MICRO = 1e-6


class Lifeline:
    """Asked between rounds, during calls, and in line.

    Args:
        is_cancelled: whether the client has gone.
        arrived: `time.perf_counter` when the request arrived.
        timeout: microseconds that it may take from then on, waiting included; 0: any time.
    """

    def __init__(self, is_cancelled: Callable[[], bool], arrived: float, timeout: int) -> None:
        self._is_cancelled = is_cancelled
        self._arrived = arrived
        self._timeout = timeout

    def check(self) -> None:
        """
        Raises:
            CancelledError: the client withdrew the request.
            RequestTimeoutError: its deadline has passed.
        """
        if self._is_cancelled():
            raise CancelledError("the request was cancelled")
        if self._timeout and time.perf_counter() - self._arrived >= self._timeout * _MICRO:
            raise RequestTimeoutError(f"timeout = {self._timeout} us: the request's time is up")

    def check_in_line(self, longest_s: float) -> None:
        """As `check`, for a request that waits for its turn.

        Raises:
            OverloadedError: it has waited for `longest_s` seconds.
        """
        self.check()
        if time.perf_counter() - self._arrived >= longest_s:
            raise OverloadedError(
                f"the request waited {longest_s:g} s for its turn, the limit (queue.timeout_s); try again later"
            )
