"""`specdec bench --concurrency`: speculative over plain decoding with many requests at once, pair by pair.

A pair is one batch of requests decoded twice through the same server, by one direct call of the target each and with
speculation, one right after the other; who goes first alternates. Every prompt of a run is different, so no answer
comes out of a cache.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.client.prompts import BUILT_IN, Prompt, load_prompts
from pipeline.client.ratios import bootstrap_interval
from pipeline.client.serve import running_server
from pipeline.client.terminal import print_table
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.engine.fit import read_engine_manifest
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.serving.ports import FREE_PORTS
from pipeline.spec import DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

PAIRS = 30
TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True)
class BatchRun:
    """One batch of requests, decoded one way.

    Attributes:
        tokens: committed by all of them.
        seconds: from the first request to the last response.
        first_token_s: median over the requests.
        drafted, accepted: draft tokens of all of them.
    """

    tokens: int
    seconds: float
    first_token_s: float
    drafted: int
    accepted: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Pair:
    """The same requests twice."""

    plain: BatchRun
    speculative: BatchRun

    @property
    def speedup(self) -> float:
        """Tokens per second over tokens per second."""
        return self.speculative.tokens_per_s / self.plain.tokens_per_s

    @property
    def first_token(self) -> float:
        """Time to the first token over plain's."""
        return self.speculative.first_token_s / self.plain.first_token_s


@dataclass(frozen=True)
class LoadPoint:
    """What the pairs of one concurrency and temperature say.

    Attributes:
        low, high: bootstrap 95 % interval of the median speedup.
        first_token: median of the pairs' ratios.
        over_one: plain tokens per second over those of one request at a time, in this run.
        acceptance: accepted over drafted.
    """

    concurrency: int
    temperature: float
    pairs: int
    plain_tokens_per_s: float
    speculative_tokens_per_s: float
    speedup: float
    low: float
    high: float
    first_token: float
    over_one: float
    acceptance: float

    @classmethod
    def of(cls, concurrency: int, temperature: float, pairs: Sequence[Pair], plain_alone: float | None) -> LoadPoint:
        """Args: plain_alone: plain tokens per second at concurrency 1; None where this is it."""
        speedups = [pair.speedup for pair in pairs]
        low, high = bootstrap_interval(speedups, statistics.median)
        plain = statistics.median(pair.plain.tokens_per_s for pair in pairs)
        drafted = sum(pair.speculative.drafted for pair in pairs)
        return cls(
            concurrency,
            temperature,
            len(pairs),
            plain,
            statistics.median(pair.speculative.tokens_per_s for pair in pairs),
            statistics.median(speedups),
            low,
            high,
            statistics.median(pair.first_token for pair in pairs),
            plain / (plain_alone or plain),
            sum(pair.speculative.accepted for pair in pairs) / drafted if drafted else 0.0,
        )


def run_concurrency_bench(
    spec: DeploymentSpec,
    console: Console,
    prompts_file: Path | None,
    concurrencies: Sequence[int],
    pairs: int,
    max_tokens: int,
    json_file: Path | None,
) -> int:
    """Measure, print a table, write JSON. Returns the exit status.

    Raises:
        SpecDecodeError: an engine or server that is missing.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    prompts = unique_prompts(load_prompts(prompts_file or BUILT_IN))
    tokenizer = Tokenizer.load(spec.engine_dir("target"))
    end_id = read_engine_manifest(spec, "target").end_id
    points: list[LoadPoint] = []
    with running_server(spec, console, FREE_PORTS) as server, Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(concurrencies) * len(TEMPERATURES) * pairs)
        for temperature in TEMPERATURES:
            alone = None
            for concurrency in concurrencies:
                progress.update(task, description=f"concurrency {concurrency}, temperature {temperature:g}")
                with Crowd(server.grpc_address, concurrency, tokenizer, end_id, max_tokens) as crowd:
                    crowd.speculative([next(prompts) for _ in range(concurrency)], temperature)  # warms this load
                    found = []
                    for order in range(pairs):
                        batch = [next(prompts) for _ in range(concurrency)]
                        found.append(crowd.pair(batch, temperature, order))
                        progress.advance(task)
                points.append(LoadPoint.of(concurrency, temperature, found, alone))
                alone = alone or points[-1].plain_tokens_per_s
        progress.update(task, description="done")
    print_points(console, points, max_tokens)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps([asdict(point) for point in points], indent=2) + "\n")
        console.print(f"written to {json_file}", highlight=False)
    return 0


def unique_prompts(prompts: Sequence[Prompt]) -> Iterator[Prompt]:
    """The prompts over and over, in an order of every kind, each time with another beginning."""
    shuffled = random.Random(0).sample(prompts, len(prompts))
    number = 0
    while True:
        for prompt in shuffled:
            number += 1
            yield Prompt(prompt.kind, f"Request {number}. {prompt.text}")


class Crowd:
    """Clients that ask at the same time, a connection each.

    Args:
        address: host:port of gRPC.
        size: how many.
        tokenizer, end_id: the target's.
        max_tokens: of an answer.
    """

    def __init__(self, address: str, size: int, tokenizer: Tokenizer, end_id: int | None, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._end_id = end_id
        self._max_tokens = max_tokens
        self._stack = ExitStack()
        self._clients = [self._stack.enter_context(SpecDecodeClient(address)) for _ in range(size)]
        self._threads = self._stack.enter_context(ThreadPoolExecutor(size))

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def pair(self, prompts: Sequence[Prompt], temperature: float, order: int) -> Pair:
        """The same prompts twice; even orders decode plainly first. The prompts are in the target's cache for both."""
        self.plain(prompts, temperature, 1)
        first_token_s = self.plain(prompts, temperature, 1).first_token_s
        if order % 2 == 0:
            plain = self.plain(prompts, temperature, self._max_tokens)
            speculative = self.speculative(prompts, temperature)
        else:
            speculative = self.speculative(prompts, temperature)
            plain = self.plain(prompts, temperature, self._max_tokens)
        return Pair(replace(plain, first_token_s=first_token_s), speculative)

    def plain(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> BatchRun:
        """A direct call of the target for each prompt, all at once; the first token is seen with the last."""

        def ask(number: int) -> tuple[float, int]:
            text = self._tokenizer.apply_chat_template(prompts[number].text)
            ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
            began = time.perf_counter()
            sampling = SamplingParams(temperature)
            found = self._clients[number].decode_plain(ids, max_tokens, self._end_id, sampling, seed=number)
            return time.perf_counter() - began, len(found)

        started = time.perf_counter()
        answers = list(self._threads.map(ask, range(len(prompts))))
        seconds = time.perf_counter() - started
        return BatchRun(sum(n for _, n in answers), seconds, statistics.median(s for s, _ in answers), 0, 0)

    def speculative(self, prompts: Sequence[Prompt], temperature: float) -> BatchRun:
        """A streamed request for each prompt, all at once; the controller chooses K."""

        def ask(number: int) -> tuple[float, dict[str, Any]]:
            request = GenerationRequest(
                prompts[number].text,
                self._max_tokens,
                sampling=SamplingParams(temperature),
                chat=True,
                stream=True,
                exclude_input_in_output=True,
            )
            replies = list(self._clients[number].generate(request))
            statistics_ = replies[-1].statistics
            assert statistics_ is not None
            return replies[0].seconds, statistics_

        started = time.perf_counter()
        answers = list(self._threads.map(ask, range(len(prompts))))
        seconds = time.perf_counter() - started

        def total(name: str) -> int:
            return sum(int(statistics_[name]) for _, statistics_ in answers)

        return BatchRun(
            total("committed_tokens"),
            seconds,
            statistics.median(first for first, _ in answers),
            total("num_draft_tokens"),
            total("num_accepted_draft_tokens"),
        )


def print_points(console: Console, points: Sequence[LoadPoint], max_tokens: int) -> None:
    """One row per concurrency and temperature."""
    rows = [
        (
            f"{point.temperature:g}",
            str(point.concurrency),
            f"{point.plain_tokens_per_s:.0f}",
            f"{point.speculative_tokens_per_s:.0f}",
            f"{point.speedup:.2f}x",
            f"{point.low:.2f}-{point.high:.2f}",
            f"{point.acceptance:.2f}",
            f"{point.first_token:.2f}x",
            f"{point.over_one:.2f}x",
        )
        for point in points
    ]
    columns = ("T", "requests", "plain t/s", "spec t/s", "speedup", "95 %", "accept", "first token", "over one")
    title = f"adaptive K over direct calls of the target, {max_tokens} tokens, medians of {points[0].pairs} pairs"
    print_table(console, title, columns, rows)
