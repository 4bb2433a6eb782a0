"""Bounded daemon threads. A job that never returns costs its thread, not the exit of the process."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable

from pipeline.errors import OverloadedError

Job = Callable[[], None]


class WorkerPool:
    """Threads that are started when needed and run jobs in order of arrival.

    `concurrent.futures` joins its threads when the interpreter exits; a BLS call to a dead child never
    returns (python_backend release 24.10), so that a stub would never end.

    Args:
        name: of the threads.
        size: jobs that run at once.
        max_waiting: jobs that may wait beyond those; None: any number.
    """

    def __init__(self, name: str, size: int, max_waiting: int | None = None) -> None:
        self._name = name
        self._size = size
        self._max_waiting = max_waiting
        self._jobs: deque[Job] = deque()
        self._wake = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._unfinished = 0
        self._written_off = 0
        self._closed = False

    def submit(self, job: Job) -> None:
        """Queue a job; what it raises is logged.

        Raises:
            OverloadedError: as many are waiting as may, or the pool is closed.
        """
        with self._wake:
            if self._closed:
                raise OverloadedError("the server is stopping")
            busy = self._unfinished - self._written_off
            if self._max_waiting is not None and busy >= self._size + self._max_waiting:
                raise OverloadedError(
                    f"{self._size} requests run and {self._max_waiting} wait, which is the limit; try again later"
                )
            self._jobs.append(job)
            self._unfinished += 1
            if self._idle >= len(self._jobs):
                self._wake.notify()
            elif self._threads < self._size + self._written_off:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()

    def write_off(self, jobs: int) -> None:
        """So many running jobs are given up: their threads count no more."""
        with self._wake:
            self._written_off = jobs

    @property
    def waiting(self) -> int:
        """Jobs that have no thread yet."""
        return len(self._jobs)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> list[Job]:
        """Take no more jobs; idle threads end. Returns the jobs that were waiting."""
        with self._wake:
            self._closed = True
            waiting = list(self._jobs)
            self._jobs.clear()
            self._wake.notify_all()
        return waiting

    def _work(self) -> None:
        while True:
            with self._wake:
                self._idle += 1
                while not self._jobs and not self._closed:
                    self._wake.wait()
                self._idle -= 1
                if self._closed or self._threads > self._size + self._written_off:
                    self._threads -= 1
                    if self._jobs:
                        self._wake.notify()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception:
                # A thread that died of one job would be missing to all others.
                traceback.print_exc()
            finally:
                with self._wake:
                    self._unfinished -= 1
