"""How likely drafts are kept: conditional acceptance by position, per request, with a shared prior."""

from __future__ import annotations

import threading
from collections import defaultdict

PRIOR = {"ngram": 0.6, "model": 0.4}  # before anything was seen
PRIOR_WEIGHT = 3.0
REQUEST_MEMORY = 0.93  # a text changes its mind within some dozens of rounds
SHARED_MEMORY = 0.995


class AcceptanceTable:
    """Counts of kept and tried drafts by key and position, with forgetting.

    Position i is tried only where all before it were kept, so the ratio is conditional acceptance; a round that
    kept everything says nothing about what comes after (a censored observation) and adds nothing there.
    """

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._tried: defaultdict[tuple[str, int], float] = defaultdict(float)
        self._kept: defaultdict[tuple[str, int], float] = defaultdict(float)

    def add(self, key: str, drafted: int, accepted: int) -> None:
        for position in range(min(accepted + 1, drafted)):
            slot = (key, position)
            self._tried[slot] = self._tried[slot] * self._memory + 1.0
            self._kept[slot] = self._kept[slot] * self._memory + (position < accepted)

    def rate(self, key: str, position: int, prior: float) -> float:
        tried, kept = self._tried[key, position], self._kept[key, position]
        return (kept + PRIOR_WEIGHT * prior) / (tried + PRIOR_WEIGHT)


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
