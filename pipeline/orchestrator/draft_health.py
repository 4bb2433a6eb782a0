"""Keeps a failing draft from costing every request its deadline."""

from __future__ import annotations

import threading
import time

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0


class DraftHealth:
    """After a failure the draft model rests for a while, longer each time; one good call clears the record."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0.0
        self._pause_s = FIRST_PAUSE_S
        self.failures = 0

    @property
    def usable(self) -> bool:
        return time.monotonic() >= self._until

    def failed(self) -> None:
        with self._lock:
            self.failures += 1
            now = time.monotonic()
            if now < self._until:
                return  # a call that was under way when the draft failed: the same incident
            self._until = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def worked(self) -> None:
        if self._pause_s != FIRST_PAUSE_S:
            with self._lock:
                self._pause_s = FIRST_PAUSE_S
