"""Bounded daemon threads. A job that never returns costs its thread, not the exit of the process."""

from __future__ import annotations

import heapq
import itertools
import threading
import traceback
from collections.abc import Callable

from pipeline.errors import OverloadedError

Job = Callable[[], None]


class WorkerPool:
    """Threads that are started when needed and run jobs in the order of their places, then of arrival.

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
        self._jobs: list[tuple[float, int, Job]] = []  # a heap of (place, number, job)
        self._numbers = itertools.count()
        self._wake = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._unfinished = 0
        self._written_off = 0
        self._closed = False

    def submit(self, job: Job, place: float = 0.0) -> None:
        """Queue a job; what it raises is logged.

        Args:
            place: in line; smaller goes first.

        Raises:
            OverloadedError: as many are waiting as may, the pool is closed, or there is no thread for it.
        """
        with self._wake:
            if self._closed:
                raise OverloadedError("the server is stopping")
            busy = self._unfinished - self._written_off
            if self._max_waiting is not None and busy >= self._size + self._max_waiting:
                raise OverloadedError(
                    f"{self._size} requests run and {self._max_waiting} wait, which is the limit; try again later"
                )
            heapq.heappush(self._jobs, (place, next(self._numbers), job))
            self._unfinished += 1
            if self._idle >= len(self._jobs):
                self._wake.notify()
            elif self._threads < self._size + self._written_off:
                self._start_thread(job)

    def _start_thread(self, job: Job) -> None:
        self._threads += 1
        try:
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        except RuntimeError as error:
            self._threads -= 1
            if not self._threads:  # nobody would ever take it
                self._jobs = [entry for entry in self._jobs if entry[2] is not job]
                heapq.heapify(self._jobs)
                self._unfinished -= 1
                raise OverloadedError(f"no thread to be had ({error}); try again later") from None

    def queued(self) -> list[Job]:
        """Jobs that have no thread yet, in no order."""
        with self._wake:
            return [job for _, _, job in self._jobs]

    def withdraw(self, job: Job) -> bool:
        """Take a job out of the line. False where it runs, or has run."""
        with self._wake:
            left = [entry for entry in self._jobs if entry[2] is not job]
            if len(left) == len(self._jobs):
                return False
            heapq.heapify(left)
            self._jobs = left
            self._unfinished -= 1
            return True

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
            waiting = [job for _, _, job in sorted(self._jobs)]
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
                _, _, job = heapq.heappop(self._jobs)
            try:
                job()
            except Exception:
                # A thread that died of one job would be missing to all others.
                traceback.print_exc()
            finally:
                with self._wake:
                    self._unfinished -= 1
