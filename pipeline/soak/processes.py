"""Memory, threads and file handles of a deployment's processes over time, and how fast memory grows."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

SAMPLE_S = 1.0
_SETTLING = 0.25  # of a process's life: it fills its caches
_FEWEST = 8  # samples that a slope needs


@dataclass(frozen=True)
class ProcessSample:
    """One process at a moment of `time.monotonic`: resident bytes, threads, open files."""

    at: float
    name: str
    pid: int
    bytes: int
    threads: int = 0
    files: int = 0


class ProcessWatch:
    """Looks at processes once a second, until it is closed.

    Args:
        processes: by name, as they are now.
    """

    def __init__(self, processes: Callable[[], Mapping[str, psutil.Process]]) -> None:
        self._processes = processes
        self._ending = threading.Event()
        self.samples: list[ProcessSample] = []
        self._thread = threading.Thread(target=self._run, name="soak-process-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(SAMPLE_S):
            for name, process in self._processes().items():
                with suppress(psutil.Error):
                    memory = process.memory_info().rss
                    threads, files = process.num_threads(), process.num_fds()
                    self.samples.append(ProcessSample(time.monotonic(), name, process.pid, memory, threads, files))


def slopes(samples: Sequence[ProcessSample]) -> dict[str, float]:
    """MB per minute by name: least squares over the longest life of each, without its first quarter.

    A process that was killed and started again begins with less memory; its lives are not mixed.
    """
    found = {}
    for name in sorted({sample.name for sample in samples}):
        lives: dict[int, list[ProcessSample]] = {}
        for sample in samples:
            if sample.name == name:
                lives.setdefault(sample.pid, []).append(sample)
        life = max(lives.values(), key=lambda life: life[-1].at - life[0].at)
        begin = life[0].at + _SETTLING * (life[-1].at - life[0].at)
        kept = [sample for sample in life if sample.at >= begin]
        if len(kept) >= _FEWEST:
            slope, _ = statistics.linear_regression([s.at for s in kept], [s.bytes for s in kept])
            found[name] = slope * 60 / 1e6
    return found


def first_half(samples: Sequence[ProcessSample], pid: int) -> tuple[int, int]:
    """Most threads and most open files of a process in the first half of its life; 0, 0 where nobody looked."""
    life = [sample for sample in samples if sample.pid == pid]
    if not life:
        return 0, 0
    early = [sample for sample in life if sample.at <= (life[0].at + life[-1].at) / 2]
    return max(sample.threads for sample in early), max(sample.files for sample in early)
