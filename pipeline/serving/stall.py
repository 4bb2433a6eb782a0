"""Telling a start that hangs from one that is slow."""

from __future__ import annotations

import contextlib
import time

import psutil

from pipeline.serving.shared_memory import group_members

STALL_S = 20.0
_LOOK_S = 1.0
_WORK_S = 0.1  # processor time; a server that waits was measured to take 0.01 s in 20 s


class StallWatch:
    """Whether the processes of a group have stopped working.

    A stub's message that its model is loaded can get lost on its way to tritonserver (seen twice with
    release 24.10 on a starved machine): both then wait for ever, and use no processor time.

    Args:
        group: process group.
        stall_s: seconds without work after which it counts as hanging.
    """

    def __init__(self, group: int, stall_s: float | None = None) -> None:
        self._group = group
        self._stall_s = STALL_S if stall_s is None else stall_s
        self._worked = 0.0
        self._looked = self._last_work = time.monotonic()

    def stalled(self) -> bool:
        """Looks at most once a second; call it often."""
        now = time.monotonic()
        if now - self._looked >= min(_LOOK_S, self._stall_s / 2):
            self._looked = now
            worked = _processor_time(self._group)
            if worked - self._worked > _WORK_S:
                self._worked, self._last_work = worked, now
        return now - self._last_work > self._stall_s


def _processor_time(group: int) -> float:
    total = 0.0
    for process in group_members(group):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
