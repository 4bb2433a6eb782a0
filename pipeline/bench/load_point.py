"""Requests in flight, decoded plainly and with speculation: what one pair of runs, and all pairs of a load, say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.client.ratios import bootstrap_interval

PARTS = ("draft", "verify", "overhead")


@dataclass(frozen=True)
class Answered:
    """One request of a run.

    Attributes:
        kind: of its prompt.
        tokens: committed.
        seconds: from the request to the last response.
        first_token_s: from the request to the first token.
        statistics: `spec_decode_stats`; None of a direct call of the target.
    """

    kind: str
    tokens: int
    seconds: float
    first_token_s: float
    statistics: Mapping[str, Any] | None = None

    @property
    def token_s(self) -> float | None:
        """Seconds per token after the first; None where there is no second."""
        return (self.seconds - self.first_token_s) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(frozen=True)
class BatchRun:
    """One batch of requests, decoded one way.

    Attributes:
        seconds: from the first request to the last response.
    """

    answers: tuple[Answered, ...]
    seconds: float

    @property
    def tokens(self) -> int:
        """Committed by all of them."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def first_token_s(self) -> float:
        """Median over the requests."""
        return statistics.median(answer.first_token_s for answer in self.answers)

    @property
    def token_s(self) -> float | None:
        """Median over the requests that have a second token."""
        found = [answer.token_s for answer in self.answers if answer.token_s is not None]
        return statistics.median(found) if found else None


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
        speedup, low, high: median of the pairs' ratios, and its bootstrap 95 % interval.
        first_token, first_token_low, first_token_high: the same of times to the first token over plain's.
        plain_first_token_s, first_token_s: medians of the runs' medians.
        plain_token_s, token_s: seconds per token after the first, likewise; None where no answer has two.
        over_one: plain tokens per second over those of one request at a time, in this run; None: not measured.
        acceptance: accepted over drafted; None where nothing was drafted.
        round_split: shares of the rounds' time by part; empty where there was no round.
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
    first_token_low: float
    first_token_high: float
    plain_first_token_s: float
    first_token_s: float
    plain_token_s: float | None
    token_s: float | None
    over_one: float | None
    acceptance: float | None
    round_split: dict[str, float]

    @classmethod
    def of(cls, concurrency: int, temperature: float, pairs: Sequence[Pair], plain_alone: float | None) -> LoadPoint:
        """Args: plain_alone: plain tokens per second at concurrency 1; None where this is it, or none was measured."""
        speedups = [pair.speedup for pair in pairs]
        low, high = bootstrap_interval(speedups, statistics.median)
        firsts = [pair.first_token for pair in pairs]
        first_low, first_high = bootstrap_interval(firsts, statistics.median)
        plain = statistics.median(pair.plain.tokens_per_s for pair in pairs)
        told = [a.statistics for pair in pairs for a in pair.speculative.answers if a.statistics is not None]
        drafted = sum(int(one["num_draft_tokens"]) for one in told)
        return cls(
            concurrency=concurrency,
            temperature=temperature,
            pairs=len(pairs),
            plain_tokens_per_s=plain,
            speculative_tokens_per_s=statistics.median(pair.speculative.tokens_per_s for pair in pairs),
            speedup=statistics.median(speedups),
            low=low,
            high=high,
            first_token=statistics.median(firsts),
            first_token_low=first_low,
            first_token_high=first_high,
            plain_first_token_s=statistics.median(pair.plain.first_token_s for pair in pairs),
            first_token_s=statistics.median(pair.speculative.first_token_s for pair in pairs),
            plain_token_s=_median([pair.plain for pair in pairs], lambda run: run.token_s),
            token_s=_median([pair.speculative for pair in pairs], lambda run: run.token_s),
            over_one=1.0 if concurrency == 1 else None if plain_alone is None else plain / plain_alone,
            acceptance=sum(int(one["num_accepted_draft_tokens"]) for one in told) / drafted if drafted else None,
            round_split=round_split(told),
        )


def round_split(told: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Shares of the rounds' time by part, of requests with these statistics; empty where there was no round."""
    seconds = {part: sum(float(one[f"{part}_s"]) for one in told) for part in PARTS}
    whole = sum(seconds.values())
    return {part: value / whole for part, value in seconds.items()} if whole else {}


def _median(runs: Sequence[BatchRun], value: Callable[[BatchRun], float | None]) -> float | None:
    found = [got for run in runs if (got := value(run)) is not None]
    return statistics.median(found) if found else None
