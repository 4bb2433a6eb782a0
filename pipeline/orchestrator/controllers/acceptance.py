"""How likely drafts are kept: conditional acceptance by position, per request, with a shared prior."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass

PRIOR = {"ngram": 0.5, "model": 0.4}  # of a first draft, before anything was seen
# Conditional acceptance of a look-up by how many tokens agree before it, kept drafts included: counted in
# 110,000 tokens of greedy text that the demo target wrote (prompts of all kinds, none of them in `bench`).
LOOKUP_PRIOR = (0.2, 0.25, 0.5, 0.68, 0.73, 0.8, 0.8, 0.83, 0.87, 0.89, 0.91, 0.91, 0.91, 0.93, 0.94, 0.95, 0.97)
PRIOR_WEIGHT = 8.0
REQUEST_MEMORY = 0.96  # a text changes its mind within some dozens of rounds
SHARED_MEMORY = 0.995


@dataclass
class _Count:
    tried: float = 0.0
    kept: float = 0.0


@dataclass(frozen=True)
class Place:
    """Where an offer's drafts stand on the curve of their source: a look-up's first draft stands at the length of its
    match, and each draft that is kept makes the match one longer. A model's drafts are told apart by position alone.

    Attributes:
        source: such as `ngram`.
        first: index of the first draft.
    """

    source: str
    first: int

    @classmethod
    def of(cls, key: str) -> Place:
        """The place of an offer's key, such as `ngram-3` or `model`."""
        source, _, match = key.partition("-")
        return cls(source, int(match or 0))

    def prior(self, position: int, before: float | None) -> float:
        """Before anything was seen there: a look-up's by its length, else as good as the position before."""
        if self.source == "ngram":
            return LOOKUP_PRIOR[min(self.first + position, len(LOOKUP_PRIOR) - 1)]
        return before if before is not None else PRIOR.get(self.source, 0.4)

    def index(self, position: int) -> int:
        """On the curve; matches beyond the longest that is told apart are one."""
        index = self.first + position
        return min(index, len(LOOKUP_PRIOR) - 1) if self.source == "ngram" else index


class AcceptanceTable:
    """Counts of kept and tried drafts by source and place, with forgetting.

    Position i is tried only where all before it were kept, so the ratio is conditional acceptance; a round that
    kept everything says nothing about what comes after (a censored observation) and adds nothing there. A round
    ages all positions: what was seen long ago must not keep K from a position that is no longer tried.
    """

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._counts: defaultdict[str, list[_Count]] = defaultdict(list)

    def add(self, key: str, drafted: int, accepted: int) -> None:
        place = Place.of(key)
        counts = self._counts[place.source]
        counts.extend(_Count() for _ in range(place.index(drafted) - len(counts) + 1))
        for count in counts:
            count.tried *= self._memory
            count.kept *= self._memory
        for position in range(min(accepted + 1, drafted)):
            count = counts[place.index(position)]
            count.tried += 1.0
            count.kept += position < accepted

    def rate(self, key: str, position: int, prior: float) -> float:
        place = Place.of(key)
        counts, index = self._counts.get(place.source, ()), place.index(position)
        count = counts[index] if index < len(counts) else _Count()
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
        place, rates = Place.of(key), list[float]()
        with self._lock:
            for position in range(positions):
                prior = place.prior(position, rates[-1] if rates else None)
                rates.append(self._table.rate(key, position, prior))
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
