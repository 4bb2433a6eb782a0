"""The part of `specdec bench` with many requests at once: speculative over plain decoding, pair by pair.

A pair is one batch of requests decoded twice through the same server, by one direct call of the target each and with
speculation, one right after the other; who goes first alternates. Every prompt of a run is different, so no answer
comes out of a cache.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from pipeline.bench.acceptance import Acceptance
from pipeline.bench.load_point import Answered, BatchRun, LoadPoint, Pair
from pipeline.client.prompts import Prompt
from pipeline.client.terminal import print_table
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.text.tokenizer import Tokenizer

CONCURRENCIES = (1, 2, 4, 8, 16, 32)
PAIRS = 30
TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True)
class LoadResult:
    """Every point, and by temperature the drafts of all requests by kind of text."""

    points: tuple[LoadPoint, ...]
    acceptance: dict[float, dict[str, Acceptance]]


@dataclass(frozen=True)
class LoadOptions:
    """What is measured.

    Attributes:
        pairs: per concurrency and temperature.
        max_tokens: of an answer.
    """

    concurrencies: tuple[int, ...] = CONCURRENCIES
    pairs: int = PAIRS
    max_tokens: int = 64


def measure_load(
    address: str,
    tokenizer: Tokenizer,
    end_id: int | None,
    prompts: Iterator[Prompt],
    options: LoadOptions,
    tick: Callable[[str], None],
) -> LoadResult:
    """Measure a running deployment.

    Args:
        address: host:port of gRPC.
        tokenizer, end_id: the target's.
        prompts: never the same twice.
        tick: told what runs, before every pair.
    """
    points: list[LoadPoint] = []
    acceptance: dict[float, dict[str, Acceptance]] = {}
    for temperature in TEMPERATURES:
        alone = None
        told: dict[str, list[Any]] = {}
        for concurrency in options.concurrencies:
            with Crowd(address, concurrency, tokenizer, end_id, options.max_tokens) as crowd:
                crowd.speculative([next(prompts) for _ in range(concurrency)], temperature)  # warms this load
                found = []
                for order in range(options.pairs):
                    tick(f"concurrency {concurrency}, temperature {temperature:g}")
                    batch = [next(prompts) for _ in range(concurrency)]
                    found.append(crowd.pair(batch, temperature, order))
            points.append(LoadPoint.of(concurrency, temperature, found, alone))
            if concurrency == 1:
                alone = points[-1].plain_tokens_per_s
            for answer in (answer for pair in found for answer in pair.speculative.answers):
                told.setdefault(answer.kind, []).append(answer.statistics)
        acceptance[temperature] = {kind: Acceptance.of(kinds) for kind, kinds in told.items()}
    return LoadResult(tuple(points), acceptance)


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
        # A direct call answers once, at its end: its first token is timed by a call for one token.
        firsts = self.plain(prompts, temperature, 1)
        if order % 2 == 0:
            plain = self.plain(prompts, temperature, self._max_tokens)
            speculative = self.speculative(prompts, temperature)
        else:
            speculative = self.speculative(prompts, temperature)
            plain = self.plain(prompts, temperature, self._max_tokens)
        answers = tuple(
            replace(answer, first_token_s=min(first.seconds, answer.seconds))
            for answer, first in zip(plain.answers, firsts.answers, strict=True)
        )
        return Pair(replace(plain, answers=answers), speculative)

    def plain(self, prompts: Sequence[Prompt], temperature: float, max_tokens: int) -> BatchRun:
        """A direct call of the target for each prompt, all at once; the first token is seen with the last."""

        def ask(number: int) -> Answered:
            text = self._tokenizer.apply_chat_template(prompts[number].text)
            ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
            began = time.perf_counter()
            sampling = SamplingParams(temperature)
            found = self._clients[number].decode_plain(ids, max_tokens, self._end_id, sampling, seed=number)
            seconds = time.perf_counter() - began
            return Answered(prompts[number].kind, len(found), seconds, seconds)

        return self._all_at_once(ask, len(prompts))

    def speculative(self, prompts: Sequence[Prompt], temperature: float) -> BatchRun:
        """A streamed request for each prompt, all at once; the controller chooses K."""

        def ask(number: int) -> Answered:
            request = GenerationRequest(
                prompts[number].text,
                self._max_tokens,
                sampling=SamplingParams(temperature),
                chat=True,
                stream=True,
                exclude_input_in_output=True,
            )
            replies = list(self._clients[number].generate(request))
            told = replies[-1].statistics
            assert told is not None
            tokens = int(told["committed_tokens"])
            return Answered(prompts[number].kind, tokens, replies[-1].seconds, replies[0].seconds, told)

        return self._all_at_once(ask, len(prompts))

    def _all_at_once(self, ask: Callable[[int], Answered], count: int) -> BatchRun:
        started = time.perf_counter()
        answers = tuple(self._threads.map(ask, range(count)))
        return BatchRun(answers, time.perf_counter() - started)


def print_points(console: Console, points: Sequence[LoadPoint], max_tokens: int) -> None:
    """One row per concurrency and temperature, and one of times."""
    rows = [
        (
            f"{point.temperature:g}",
            str(point.concurrency),
            f"{point.plain_tokens_per_s:.0f}",
            f"{point.speculative_tokens_per_s:.0f}",
            f"{point.speedup:.2f}x",
            f"{point.low:.2f}-{point.high:.2f}",
            "-" if point.acceptance is None else f"{point.acceptance:.2f}",
            f"{point.first_token:.2f}x",
            "-" if point.over_one is None else f"{point.over_one:.2f}x",
        )
        for point in points
    ]
    columns = ("T", "requests", "plain t/s", "spec t/s", "speedup", "95 %", "accept", "first token", "over one")
    title = f"adaptive K over direct calls of the target, {max_tokens} tokens, medians of {points[0].pairs} pairs"
    print_table(console, title, columns, rows)
    times = [
        (
            f"{point.temperature:g}",
            str(point.concurrency),
            f"{point.plain_first_token_s * 1e3:.0f}",
            f"{point.first_token_s * 1e3:.0f}",
            *("-" if value is None else f"{value * 1e3:.1f}" for value in (point.plain_token_s, point.token_s)),
            *(f"{share:.1%}" for share in point.round_split.values()),
        )
        for point in points
    ]
    columns = ("T", "requests", "plain ms", "spec ms", "plain ms/t", "spec ms/t", "draft", "verify", "else")
    print_table(console, "first token, time per later token, where the rounds' time went", columns, times)


def print_acceptance(console: Console, acceptance: dict[float, dict[str, Acceptance]]) -> None:
    """One row per kind of text, a column per temperature."""
    kinds = sorted({kind for by_kind in acceptance.values() for kind in by_kind})

    def cell(temperature: float, kind: str) -> str:
        found = acceptance[temperature].get(kind)
        return "-" if found is None or found.rate is None else f"{found.rate:.2f} of {found.drafted}"

    rows = [(kind, *(cell(temperature, kind) for temperature in acceptance)) for kind in kinds]
    columns = ("kind", *(f"T {temperature:g}" for temperature in acceptance))
    print_table(console, "drafts accepted, all loads together", columns, rows)
