"""Which drafts would have been kept: recorded where one was tried, estimated elsewhere."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate

from pipeline.orchestrator.controllers.acceptance import PRIOR
from pipeline.orchestrator.trace.line import TraceRound

WINDOW = 32  # tokens to both sides: as far as a text stays equally hard to guess
TRUST = 8.0  # outcomes that count as much as what is believed without them

Known = dict[int, bool]


class AnswerOutcomes:
    """By source and position of one answer's text: is a draft kept that stands there behind the text itself?

    Where the trace tried one, the outcome is what happened. Elsewhere it is drawn, once for all controllers, with the
    probability that outcomes nearby suggest: those within WINDOW tokens, on top of the answer's, on top of the trace's.

    Args:
        rounds: of the answer.
        rates: acceptance per source over the whole trace.
        seed: of what is drawn.
    """

    def __init__(self, rounds: Sequence[TraceRound], rates: dict[str, float], seed: int) -> None:
        self._known = known_outcomes(rounds)
        self._rates = rates
        self._name = f"{seed}:{rounds[0].request}"
        self._drawn: dict[tuple[str, int], bool] = {}
        self._sums = {source: _Sums(known) for source, known in self._known.items()}

    def recorded(self, source: str, position: int) -> bool:
        """Whether the trace tried a draft there."""
        return position in self._known.get(source, ())

    def kept(self, source: str, position: int) -> bool:
        """Whether a draft there is kept."""
        known = self._known.get(source, {})
        if position in known:
            return known[position]
        place = source, position
        if place not in self._drawn:
            draw = random.Random(f"{self._name}:{source}:{position}").random()
            self._drawn[place] = draw < self.rate(source, position)
        return self._drawn[place]

    def rate(self, source: str, position: int) -> float:
        """Estimated probability that a draft there is kept."""
        rate = self._rates.get(source, PRIOR.get(source, 0.4))
        sums = self._sums.get(source)
        if sums is None:
            return rate
        for low, high in ((0, 1 << 62), (position - WINDOW, position + WINDOW)):
            kept, tried = sums.between(low, high)
            rate = (kept + TRUST * rate) / (tried + TRUST)
        return rate


class _Sums:
    """Outcomes between two positions, by sums over all before."""

    def __init__(self, known: Known) -> None:
        self._positions = sorted(known)
        self._kept = [0, *accumulate(known[position] for position in self._positions)]

    def between(self, low: int, high: int) -> tuple[int, int]:
        """Kept and tried drafts at positions low .. high."""
        first, last = bisect_left(self._positions, low), bisect_right(self._positions, high)
        return self._kept[last] - self._kept[first], last - first


def known_outcomes(rounds: Sequence[TraceRound]) -> dict[str, Known]:
    """Outcomes that an answer's rounds tried: every kept draft, and the first one that was not."""
    known: defaultdict[str, Known] = defaultdict(dict)
    for line in rounds:
        if line.source is None:
            continue
        for i in range(min(line.accepted + 1, line.drafted)):
            known[line.source][line.position + i] = i < line.accepted
    return dict(known)


def trace_rates(answers: Sequence[Sequence[TraceRound]]) -> dict[str, float]:
    """Kept over tried drafts per source, over all answers."""
    tried: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    for rounds in answers:
        for source, known in known_outcomes(rounds).items():
            tried[source] += len(known)
            kept[source] += sum(known.values())
    return {source: kept[source] / count for source, count in tried.items() if count}
