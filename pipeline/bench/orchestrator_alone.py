"""The orchestrator without models: rounds per second of one core, and memory per request in flight."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from pipeline.bench.scripted import scripted_orchestrator
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.recorder import NoRecorder
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.orchestrator.statistics import RoundRecord
from pipeline.spec import ControllerSpec
from pipeline.text.tokenizer import Tokenizer

IN_FLIGHT = (1, 4, 16, 64, 256)
REQUESTS = 256
MAX_TOKENS = 128
MEMORY_ROUNDS = 8  # a request is in the middle of its work when it is weighed
PASSAGE = (
    "The quick brown fox jumps over the lazy dog while 27 honest bees, tired of summer, carry pollen home; "
    "nobody counts them, and yet every evening the hive knows who is missing. "
)
PROMPT = PASSAGE * 4


@dataclass(frozen=True)
class AlonePoint:
    """The same requests with so many of them in flight.

    Attributes:
        driver: "one thread" takes a round of each request in turn; "threads": a thread per request, as a server has.
        controller: of K.
        rounds, tokens: of all requests.
        rounds_per_cpu_s: rounds over seconds of processor time: what one core does.
        rounds_per_s: over wall seconds.
        bytes_per_request: Python's memory per request in flight, thread stacks not counted; None: not weighed.
    """

    driver: str
    controller: str
    in_flight: int
    requests: int
    rounds: int
    tokens: int
    rounds_per_cpu_s: float
    rounds_per_s: float
    bytes_per_request: float | None


class RoundCounter(NoRecorder):
    """Counts rounds, from any thread."""

    def __init__(self) -> None:
        self._ticket = itertools.count()  # its next() is atomic

    def round_ended(self, record: RoundRecord) -> None:
        next(self._ticket)

    def read(self) -> int:
        """Rounds so far; reading it once ends its use."""
        return next(self._ticket)


def measure_alone(
    tokenizer: Tokenizer,
    controller: ControllerSpec,
    in_flight: int,
    threads: bool,
    requests: int = REQUESTS,
    max_tokens: int = MAX_TOKENS,
) -> AlonePoint:
    """Answer `requests` requests, `in_flight` of them at a time, greedily, streaming, each to its end.

    Args:
        tokenizer: of the demo, so that its part of a round is the real one.
        threads: a thread per request in flight instead of one for all.
    """
    text = tokenizer.encode(PASSAGE * 8, add_special_tokens=False)
    vocab_size = max(text) + 1

    def fresh(size: int) -> Orchestrator:
        return scripted_orchestrator(tokenizer, text, vocab_size, size, controller)

    drive = _in_threads if threads else _in_turn
    with closing(fresh(in_flight)) as warm:
        drive(warm, in_flight, min(requests, 2 * in_flight, 32), max_tokens)
    with closing(fresh(in_flight)) as orchestrator:
        counter = RoundCounter()
        orchestrator.recorder = counter
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = drive(orchestrator, in_flight, requests, max_tokens)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        rounds = counter.read()
    weight = None if threads else _bytes_per_request(fresh, in_flight, max_tokens)
    driver = "threads" if threads else "one thread"
    return AlonePoint(driver, controller.kind, in_flight, requests, rounds, tokens, rounds / cpu, rounds / wall, weight)


def is_flat(points: Sequence[AlonePoint], loss: float) -> bool:
    """Whether no point of a driver and controller is slower per core than its first by more than `loss` (0.1: 10 %)."""
    first = points[0].rounds_per_cpu_s
    return all(point.rounds_per_cpu_s >= first * (1 - loss) for point in points)


def _start(orchestrator: Orchestrator, number: int, max_tokens: int) -> Iterator[Chunk]:
    request = GenerationRequest(
        f"Request {number}. {PROMPT}", max_tokens, stream=True, exclude_input_in_output=True, seed=number
    )
    return orchestrator.generate(request)


def _in_turn(orchestrator: Orchestrator, in_flight: int, requests: int, max_tokens: int) -> int:
    """Tokens of all answers. One thread; a request that ends makes room for the next."""
    numbers = iter(range(requests))
    running = deque(_start(orchestrator, number, max_tokens) for number in itertools.islice(numbers, in_flight))
    tokens = 0
    while running:
        answer = running.popleft()
        chunk = next(answer, None)
        if chunk is not None:
            tokens += len(chunk.token_ids)
            running.append(answer)
        elif (number := next(numbers, None)) is not None:
            running.append(_start(orchestrator, number, max_tokens))
    return tokens


def _in_threads(orchestrator: Orchestrator, in_flight: int, requests: int, max_tokens: int) -> int:
    """Tokens of all answers. A thread per request in flight, all begin together."""
    numbers = iter(range(requests))
    together = threading.Barrier(min(in_flight, requests))
    lock = threading.Lock()

    def work(_: int) -> int:
        together.wait()
        tokens = 0
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return tokens
            tokens += sum(len(chunk.token_ids) for chunk in _start(orchestrator, number, max_tokens))

    workers = min(in_flight, requests)
    with ThreadPoolExecutor(workers) as pool:
        return sum(pool.map(work, range(workers)))


def _bytes_per_request(fresh: Callable[[int], Orchestrator], in_flight: int, max_tokens: int) -> float:
    with closing(fresh(in_flight)) as orchestrator:
        list(_start(orchestrator, 0, max_tokens))  # what all requests share is there before the weighing
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            running = [_start(orchestrator, number, max_tokens) for number in range(in_flight)]
            for _ in range(MEMORY_ROUNDS):
                for answer in running:
                    next(answer)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        for answer in running:
            answer.close()  # type: ignore[attr-defined]
    return (after - before) / in_flight
