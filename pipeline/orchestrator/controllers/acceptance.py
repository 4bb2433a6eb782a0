"""How likely drafts are kept: conditional acceptance by position, per request, with a shared prior."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass

PRIOR = {"ngram": 0.5, "model": 0.4}  # before anything was seen
PRIOR_WEIGHT = 8.0
REQUEST_MEMORY = 0.96  # a text changes its mind within some dozens of rounds
SHARED_MEMORY = 0.995


@dataclass
class _Count:
    tried: float = 0.0
    kept: float = 0.0


class AcceptanceTable:
    """Counts of kept and tried drafts by key and position, with forgetting.

    Position i is tried only where all before it were kept, so the ratio is conditional acceptance; a round that
    kept everything says nothing about what comes after (a censored observation) and adds nothing there. A round
    ages all positions: what was seen long ago must not keep K from a position that is no longer tried.
    """

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._counts: defaultdict[str, list[_Count]] = defaultdict(list)

    def add(self, key: str, drafted: int, accepted: int) -> None:
        counts = self._counts[key]
        counts.extend(_Count() for _ in range(drafted - len(counts)))
        for count in counts:
            count.tried *= self._memory
            count.kept *= self._memory
        for position in range(min(accepted + 1, drafted)):
            counts[position].tried += 1.0
            counts[position].kept += position < accepted

    def rate(self, key: str, position: int, prior: float) -> float:
        counts = self._counts.get(key, ())
        count = counts[position] if position < len(counts) else _Count()
        return (count.kept + PRIOR_WEIGHT * prior) / (count.tried + PRIOR_WEIGHT)


class SharedAcceptance:
    """What all requests of a deployment have seen: the prior of the next one."""

    def __init__(self) -> None:
        self._table = AcceptanceTable(SHARED_MEMORY)
        self._lock = threading.Lock()

    def add(self, key: str, drafted: int, accepted: int) -> None:
        with self._lock:
            self._table.add(key, drafted, accepted)

    def rates(self, key: str, positions: int) -> list[float]:
        with self._lock:
            rates, prior = [], PRIOR.get(key.partition("-")[0], 0.4)
            for position in range(positions):
                prior = self._table.rate(key, position, prior)
                rates.append(prior)
            return rates


class RequestAcceptance:
    """Acceptance of one request's drafts."""

    def __init__(self, shared: SharedAcceptance) -> None:
        self._shared = shared
        self._table = AcceptanceTable(REQUEST_MEMORY)

    def add(self, key: str, drafted: int, accepted: int) -> None:
        self._table.add(key, drafted, accepted)
        self._shared.add(key, drafted, accepted)

    def committed(self, key: str, largest: int) -> list[float]:
        """[largest + 1] expected committed tokens for K = 0 .. largest, correction or bonus included."""
        expected, reached = [1.0], 1.0
        for position, prior in enumerate(self._shared.rates(key, largest)):
            reached *= self._table.rate(key, position, prior)
            expected.append(expected[-1] + reached)
        return expected
