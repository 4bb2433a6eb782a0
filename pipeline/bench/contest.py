"""Several ways to decode the same prompts, prompt by prompt in turn: tokens per second, ratios and their spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.client.ratios import bootstrap_interval, geomean


@dataclass(frozen=True)
class Asked:
    """A prompt in the shapes that contestants take.

    Attributes:
        message: of the user.
        text, ids: its chat template applied, as text and as tokens.
    """

    message: str
    text: str
    ids: tuple[int, ...]


Decode = Callable[[Asked], int]
"""A prompt -> tokens that were decoded."""


@dataclass(frozen=True)
class Ratio:
    """Tokens per second over tokens per second.

    Attributes:
        ours, theirs: names of the two.
        median, low, high: over prompts, and the median's bootstrap 95 % interval.
        ratios: one per prompt.
    """

    ours: str
    theirs: str
    median: float
    low: float
    high: float
    ratios: tuple[float, ...]


@dataclass(frozen=True)
class Standings:
    """Tokens per second by contestant, one per prompt, in the same order for all."""

    speeds: dict[str, tuple[float, ...]]

    def ratio(self, ours: str, theirs: str) -> Ratio:
        """Prompt by prompt."""
        ratios = tuple(a / b for a, b in zip(self.speeds[ours], self.speeds[theirs], strict=True))
        low, high = bootstrap_interval(ratios, statistics.median)
        return Ratio(ours, theirs, statistics.median(ratios), low, high, ratios)

    def best(self, names: Sequence[str]) -> str:
        """The fastest of them, by the geometric mean over prompts."""
        return max(names, key=lambda name: geomean(self.speeds[name]))


def hold(contestants: Mapping[str, Decode], prompts: Sequence[Asked], tick: Callable[[str], None]) -> Standings:
    """Every contestant decodes every prompt once; who begins moves on by one with every prompt.

    Args:
        contestants: by name.
        prompts: the first is a warm-up (threads, caches, lazy imports) and does not count.
        tick: told what runs.
    """
    names = list(contestants)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for number, asked in enumerate(prompts):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            tick(f"{name}: prompt {number} of {len(prompts) - 1}")
            started = time.perf_counter()
            tokens = contestants[name](asked)
            seconds = time.perf_counter() - started
            if number:
                speeds[name].append(tokens / seconds)
    return Standings({name: tuple(values) for name, values in speeds.items()})
