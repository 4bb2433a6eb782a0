"""How the pass of a bucket is run: as it is, or as a CUDA graph that is captured once and replayed."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from pipeline.engine.paged.buckets import Bucket

WARM_UPS = 2
_CAPTURING = threading.Lock()  # a capture waits for the whole device, which another capture forbids


class PassRunner(ABC):
    """Runs work that reads and writes the same memory every time it is run for the same bucket."""

    @abstractmethod
    def run(self, bucket: Bucket, work: Callable[[], None]) -> None:
        """Do the work; on a device it may still be under way when this returns."""


class DirectRunner(PassRunner):
    """Does what it was given first for a bucket, again and again: a graph's sizes and a graph's memory without graphs,
    so that what would be wrong in a replay is wrong on a CPU, too."""

    def __init__(self) -> None:
        self._work: dict[Bucket, Callable[[], None]] = {}

    def run(self, bucket: Bucket, work: Callable[[], None]) -> None:
        self._work.setdefault(bucket, work)()


class CudaGraphRunner(PassRunner):
    """One CUDA graph per bucket, captured when the bucket is first used. All share one memory pool: none is replayed
    while another one's temporaries are needed."""

    def __init__(self) -> None:
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, bucket: Bucket, work: Callable[[], None]) -> None:
        graph = self._graphs.get(bucket)
        if graph is None:
            graph = self._graphs[bucket] = self._capture(work)
        graph.replay()

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.current_stream()
        with _CAPTURING:
            # Libraries allocate workspaces on their first call, which a capture must not see.
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(stream)
            with torch.cuda.stream(aside):
                for _ in range(WARM_UPS):
                    work()
            stream.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # thread_local: the engine of the other model goes on allocating meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=aside, capture_error_mode="thread_local"):
                work()
        return graph
