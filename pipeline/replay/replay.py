"""Walks a controller along recorded texts."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.drafting.base import Offer
from pipeline.orchestrator.controllers.base import ControllerFactory, KController, Observation, RoundTimes
from pipeline.orchestrator.trace.line import TraceRound
from pipeline.orchestrator.trace.reader import Trace
from pipeline.replay.outcomes import AnswerOutcomes, trace_rates
from pipeline.replay.prices import Prices


@dataclass(frozen=True)
class ReplayResult:
    """What a controller would have done. Rounds that took in a prompt are left out.

    Attributes:
        name: of the controller.
        tokens: committed.
        seconds: sum over answers, as if each ran by itself at the recorded load.
        rounds: target calls; spec_rounds: those with drafts.
        drafted, accepted: draft tokens.
        tried: drafts that decided something: the accepted ones and the first refused one of each round.
        recorded: of those, how many the trace had tried itself; the others' outcomes are estimates.
        priced_s: of `seconds`, in rounds whose K the trace had measured at that load.
        decisions: rounds by reason.
    """

    name: str
    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    spec_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    tried: int = 0
    recorded: int = 0
    priced_s: float = 0.0
    decisions: dict[str, int] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def mean_k(self) -> float:
        """Draft tokens per target call, calls that decode plainly included."""
        return self.drafted / self.rounds if self.rounds else 0.0

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def recorded_share(self) -> float:
        """Share of outcomes that are no estimates."""
        return self.recorded / self.tried if self.tried else 1.0

    @property
    def priced_share(self) -> float:
        """Share of the time whose prices are no estimates."""
        return self.priced_s / self.seconds if self.seconds else 1.0


class Replay:
    """A trace made ready for any number of controllers, who all meet the same outcomes and prices.

    Args:
        trace: answers without a single offer (plain ones) tell nothing and are left out.
        seed: of the outcomes that are estimated.
    """

    def __init__(self, trace: Trace, seed: int = 0) -> None:
        self.trace = trace
        self.prices = Prices(trace)
        rates = trace_rates(trace.answers)
        self.answers = [
            _Answer(decoding, AnswerOutcomes(decoding, rates, seed), self._first_use_s(rounds))
            for rounds in trace.answers
            if (decoding := [line for line in rounds if line.round > 0]) and any(line.offers for line in decoding)
        ]
        known = [answer.first_use_s for answer in self.answers if answer.first_use_s is not None]
        self._first_use = sum(known) / len(known) if known else 0.0

    def as_recorded(self) -> ReplayResult:
        """What the trace itself says, in the same terms."""
        sums: Counter[str] = Counter()
        decisions: Counter[str] = Counter()
        seconds = 0.0
        for line in (line for answer in self.answers for line in answer.rounds):
            seconds += line.draft_s + line.verify_s + line.overhead_s
            tried = min(line.accepted + 1, line.drafted)
            sums.update(tokens=line.committed, rounds=1, spec_rounds=line.drafted > 0, drafted=line.drafted)
            sums.update(accepted=line.accepted, tried=tried, recorded=tried)
            decisions[line.reason] += 1
        return ReplayResult("as recorded", seconds=seconds, priced_s=seconds, decisions=dict(decisions), **sums)

    def run(self, name: str, factory: ControllerFactory) -> ReplayResult:
        """Let a controller decide every round of every answer."""
        walk = _Walk(self, self._first_use)
        for answer in self.answers:
            walk.answer(answer, factory.start())
        return ReplayResult(
            name, seconds=walk.seconds, priced_s=walk.priced_s, decisions=dict(walk.decisions), **walk.sums
        )

    def _first_use_s(self, rounds: Sequence[TraceRound]) -> float | None:
        """Seconds that the draft model took for the prompt, beyond those of its drafts."""
        for line in rounds:
            if line.source == "model" and line.drafted and not line.observed:
                usual = self.prices.draft_s(Offer("model", "model", line.drafted), line.drafted, line.load)
                return max(0.0, line.draft_s - usual)
        return None


@dataclass(frozen=True)
class _Answer:
    """Rounds behind the first, what drafts would meet, and what the draft model's first use cost."""

    rounds: list[TraceRound]
    outcomes: AnswerOutcomes
    first_use_s: float | None

    @property
    def end(self) -> int:
        return self.rounds[-1].position + self.rounds[-1].committed


class _Walk:
    """Sums over the rounds of one controller."""

    def __init__(self, replay: Replay, first_use_s: float) -> None:
        self._prices = replay.prices
        self._max_draft_len = replay.trace.start.max_draft_len
        self._first_use_s = first_use_s
        self.sums: Counter[str] = Counter()
        self.decisions: Counter[str] = Counter()
        self.seconds = 0.0
        self.priced_s = 0.0

    def answer(self, answer: _Answer, controller: KController) -> None:
        starts = [line.position for line in answer.rounds]
        position, warm = starts[0], False
        while position < answer.end:
            here = answer.rounds[bisect_right(starts, position) - 1]
            remaining = here.remaining - (position - here.position)
            decision = controller.choose(self._offers(here, remaining), remaining, here.load)
            self.decisions[decision.reason] += 1
            offer, k, load, first_use_s = decision.offer, decision.k, here.load, 0.0
            left = answer.end - position
            overhead_s = self._prices.overhead_s(k > 0, load)
            if offer is None:
                accepted, computed = 0, min(decision.burst, left)
                times = RoundTimes(0.0, computed * self._prices.verify_s(0, load), overhead_s)
            else:
                accepted = self._accepted(answer, offer, k, position)
                computed = min(accepted + 1, left)
                times = RoundTimes(self._prices.draft_s(offer, k, load), self._prices.verify_s(k, load), overhead_s)
                if offer.source == "model" and not warm:
                    first_use_s = self._first_use_s if answer.first_use_s is None else answer.first_use_s
            seconds = times.draft_s + times.verify_s + times.overhead_s
            self.seconds += seconds + first_use_s
            self.priced_s += first_use_s + (seconds if self._prices.measured(k, load) else 0.0)
            self.sums.update(tokens=computed, rounds=1, spec_rounds=offer is not None, drafted=k, accepted=accepted)
            # As in the loop: the first use of the draft model takes in the prompt, and teaches nothing.
            if offer is None or offer.source != "model" or warm:
                key = None if offer is None else offer.key
                controller.observe(Observation(key, k, accepted, computed, load, times))
            warm = warm or (offer is not None and offer.source == "model")
            position += computed

    def _offers(self, here: TraceRound, remaining: int) -> list[Offer]:
        """What could be drafted: as at the last round that was recorded at or before this place."""
        limit = min(remaining - 1, self._max_draft_len)
        limit_there = min(here.remaining - 1, self._max_draft_len)
        offers = (Offer(o.source, o.key, limit if o.max_k >= limit_there else min(limit, o.max_k)) for o in here.offers)
        return [offer for offer in offers if offer.max_k > 0]

    def _accepted(self, answer: _Answer, offer: Offer, k: int, position: int) -> int:
        accepted = 0
        for place in range(position, min(position + k, answer.end)):
            self.sums.update(tried=1, recorded=answer.outcomes.recorded(offer.source, place))
            if not answer.outcomes.kept(offer.source, place):
                break
            accepted += 1
        return accepted
