"""What a round costs: means of what the trace measured, filled up by the engines' cost tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from pipeline.drafting.base import Offer
from pipeline.engine.manifest import CostTable
from pipeline.orchestrator.controllers.costs import load_bucket, model_draft_s
from pipeline.orchestrator.trace.line import TraceRound
from pipeline.orchestrator.trace.reader import Trace

LEAST = 0.2  # of its table's price: no line through measured K makes another K cheaper
ENOUGH = 8.0  # rounds that outweigh the table, and make a price a measured one


@dataclass
class _Sum:
    seconds: float = 0.0
    count: int = 0

    def add(self, seconds: float, count: int = 1) -> None:
        self.seconds += seconds
        self.count += count

    def mean(self, believed: float) -> float:
        """Seconds of one, `believed` counting as ENOUGH of them."""
        return (self.seconds + ENOUGH * believed) / (self.count + ENOUGH)


_NOTHING = _Sum()


@dataclass
class _Speed:
    """How many times longer than its table an engine took."""

    measured: float = 0.0
    table: float = 0.0

    @property
    def factor(self) -> float:
        return self.measured / self.table if self.table else 1.0


class Prices:
    """Expected seconds of every part of a round, by K and load bucket (1, 2, 3-4, 5-8 ... requests in flight).

    Args:
        trace: rounds that took in a prompt, or whose draft failed, are left out.
    """

    def __init__(self, trace: Trace) -> None:
        self._target = trace.start.target_cost
        self._draft = trace.start.draft_cost
        self._max_draft_len = trace.start.max_draft_len
        self._parts: defaultdict[Hashable, _Sum] = defaultdict(_Sum)
        self._speeds: defaultdict[Hashable, _Speed] = defaultdict(_Speed)
        self._verify: dict[tuple[int, int], float] = {}
        for rounds in trace.answers:
            for line in rounds:
                if line.observed and line.computed:
                    self._add(line)

    def verify_s(self, k: int, load: int) -> float:
        """Seconds to verify k drafts; k = 0: of one plain token."""
        place = k, load_bucket(load)
        if place not in self._verify:
            self._verify[place] = self._mean(("verify", k), load, self._believed_s(*place))
        return self._verify[place]

    def draft_s(self, offer: Offer, k: int, load: int) -> float:
        """Seconds to draft k tokens."""
        believed = _drafting(self._draft, offer.source, k) * self._factor(offer.source, load)
        return self._mean(("draft", offer.source, k), load, believed)

    def overhead_s(self, speculative: bool, load: int) -> float:
        """Seconds of a round outside both engines."""
        return self._mean(("overhead", speculative), load, self._mean(("overhead", not speculative), load, 0.0))

    def measured(self, k: int, load: int) -> bool:
        """Whether the trace holds enough rounds of this K at this load."""
        part = self._parts.get((("verify", k), load_bucket(load)))
        return part is not None and part.count >= ENOUGH

    def _believed_s(self, k: int, bucket: int) -> float:
        """By the table, its speed and its slope corrected by the K that were measured in this bucket."""
        factor = self._speeds[("target", bucket) if ("target", bucket) in self._speeds else ("target", None)].factor
        table = self._target.seconds
        points = [
            (part.count, factor * table(drafts + 1), part.seconds / part.count)
            for drafts in range(self._max_draft_len + 1)
            if (part := self._parts.get((("verify", drafts), bucket)))
        ]
        price = factor * table(k + 1)
        if not points:
            return price
        count = sum(n for n, _, _ in points)
        centre = sum(n * x for n, x, _ in points) / count
        # Least squares about the centre; one K measured ENOUGH times a draft's price away is trusted half.
        step = factor * (table(2) - table(1))
        spread = sum(n * (x - centre) ** 2 for n, x, _ in points) + ENOUGH * step**2
        slope = sum(n * (x - centre) * (y - x) for n, x, y in points) / spread if spread else 0.0
        return max(price + slope * (price - centre), LEAST * price)

    def _add(self, line: TraceRound) -> None:
        bucket = load_bucket(line.load)
        k, passes = line.drafted, 1 if line.drafted else line.computed
        self._parts[("verify", k), bucket].add(line.verify_s, passes)
        self._parts[("overhead", k > 0), bucket].add(line.overhead_s)
        self._scale("target", bucket, line.verify_s, passes * self._target.seconds(k + 1))
        if line.source is not None and k and not line.ahead:
            self._parts[("draft", line.source, k), bucket].add(line.draft_s)
            self._scale(line.source, bucket, line.draft_s, _drafting(self._draft, line.source, k))

    def _scale(self, engine: str, bucket: int, measured: float, table: float) -> None:
        for place in ((engine, bucket), (engine, None)):
            self._speeds[place].measured += measured
            self._speeds[place].table += table

    def _factor(self, engine: str, load: int) -> float:
        bucket = (engine, load_bucket(load))
        return self._speeds[bucket if bucket in self._speeds else (engine, None)].factor

    def _mean(self, part: Hashable, load: int, believed: float) -> float:
        return self._parts.get((part, load_bucket(load)), _NOTHING).mean(believed)


def _drafting(table: CostTable | None, source: str, k: int) -> float:
    return model_draft_s(table, k) if source == "model" and table is not None else 0.0
