"""The threads that share a pass."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.engine.compiled.arrays import Batch, Buffers, Own, Pool, Shape, Weights
from pipeline.engine.compiled.forward import phases, run_pass

# A thread may still be on its way out of a pass when the next begins: it must not see that one's counters.
_SETS = 2


class Team:
    """Runs passes on `threads` threads, the caller's included. Used by one caller.

    Args:
        threads: at least 1.
        layers: of the model.
    """

    def __init__(self, threads: int, layers: int) -> None:
        self.threads = threads
        self._taken = np.zeros((_SETS, phases(layers)), np.int64)
        self._done = np.zeros((_SETS, phases(layers)), np.int64)
        self._left = np.zeros(threads, np.int64)
        self._passes = 0
        self._work: list[queue.SimpleQueue[tuple[Any, ...] | None]] = [queue.SimpleQueue() for _ in range(threads - 1)]
        for i, work in enumerate(self._work):
            threading.Thread(target=_serve, args=(work,), name=f"compute-{i + 1}", daemon=True).start()

    def run(
        self, shape: Shape, weights: Weights, pool: Pool, batch: Batch, shared: Buffers, own: Sequence[Own]
    ) -> None:
        """One pass; returns when it is done.

        Args:
            own: one per thread.
        """
        current = self._passes % _SETS
        while self._left.min() < self._passes - _SETS + 1:
            time.sleep(0)  # somebody is still to see that the pass before the last is over
        taken, done = self._taken[current], self._done[current]
        taken[:] = 0
        done[:] = 0
        self._passes += 1
        calls = [(i, shape, weights, pool, batch, shared, own[i], taken, done, self._left) for i in range(self.threads)]
        for work, call in zip(self._work, calls[1:], strict=True):
            work.put(call)
        run_pass(*calls[0])

    def close(self) -> None:
        for work in self._work:
            work.put(None)


def _serve(work: queue.SimpleQueue[tuple[Any, ...] | None]) -> None:
    while (call := work.get()) is not None:
        run_pass(*call)
        del call  # it holds the weights, and the next one may never come
