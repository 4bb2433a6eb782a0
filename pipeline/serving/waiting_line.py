"""Looks after requests that wait for a thread: nobody else does, until their turn comes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from pipeline.errors import SpecDecodeError
from pipeline.serving.workers import WorkerPool

LOOK_S = 0.1
_LOOKS = 16  # requests looked after at once: each may cost a round trip between processes


class WaitingJob(ABC):
    """A job that may lose its sense while it waits."""

    @abstractmethod
    def __call__(self) -> None:
        """Do it."""

    @abstractmethod
    def check(self) -> None:
        """
        Raises:
            SpecDecodeError: it need not be done any more.
        """

    @abstractmethod
    def fail(self, error: SpecDecodeError) -> None:
        """It will not be done."""


class WaitingLine:
    """A thread that takes jobs without sense out of a pool's line, so that they hold no place in it.

    Args:
        pool: whose line.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._ending = threading.Event()
        self._next = 0
        threading.Thread(target=self._run, name="waiting-line", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_S):
            if self._pool.waiting:
                self._look([job for job in self._pool.queued() if isinstance(job, WaitingJob)])

    def _look(self, jobs: Sequence[WaitingJob]) -> None:
        """Some of them in turn."""
        self._next = self._next % len(jobs) if jobs else 0
        for job in (*jobs[self._next :], *jobs[: self._next])[:_LOOKS]:
            try:
                job.check()
            except SpecDecodeError as error:
                if self._pool.withdraw(job):
                    job.fail(error)
        self._next += _LOOKS
