"""How requests arrive in one run of a load test: so many at once, or at random at a mean rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import InvalidRequestError

LevelKind = Literal["concurrency", "rate"]
MOST_CLIENTS = 1024
MOST_PER_S = 10_000.0


@dataclass(frozen=True)
class Level:
    """One step of a sweep.

    Attributes:
        kind: concurrency is a closed loop: the next request is sent when one ends. rate is an open one, whose requests
            do not wait for answers: gaps are exponential (a Poisson process).
        value: requests in flight, or requests per second.
    """

    kind: LevelKind
    value: float

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.value:g} at once" if self.kind == "concurrency" else f"Poisson {self.value:g}/s"


def parse_levels(concurrency: str, rates: str) -> list[Level]:
    """The levels of a sweep, ascending, concurrencies first.

    Args:
        concurrency: whole numbers between commas; "" for none.
        rates: requests per second between commas; "" for none.

    Raises:
        InvalidRequestError: naming the option, its value and its limit.
    """
    levels = [Level("concurrency", n) for n in _numbers("concurrency", concurrency, 1.0, MOST_CLIENTS, whole=True)]
    levels += [Level("rate", n) for n in _numbers("rates", rates, 0.01, MOST_PER_S, whole=False)]
    if not levels:
        raise InvalidRequestError("concurrency", concurrency, "one of concurrency and rates must name a load")
    return levels


def _numbers(field: str, text: str, low: float, high: float, *, whole: bool) -> list[float]:
    found = set()
    for part in text.split(",") if text.strip() else ():
        try:
            number = float(part)
        except ValueError:
            number = math.nan
        if not low <= number <= high or (whole and number != int(number)):
            kind = "whole numbers" if whole else "numbers"
            raise InvalidRequestError(field, text, f"must be {kind} from {low:g} to {high:g} between commas")
        found.add(number)
    return sorted(found)
