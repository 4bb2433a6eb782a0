"""A deployment in numbers: known costs, known acceptance, a seeded clock; a controller decides the rounds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.drafting.base import Offer
from pipeline.engine.manifest import CostTable
from pipeline.orchestrator.controllers.base import ControllerFactory, KController, Observation, RoundTimes
from pipeline.orchestrator.controllers.costs import CostModel
from pipeline.orchestrator.controllers.goodput import GoodputFactory
from pipeline.orchestrator.trace.line import TraceRound

SIZES = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16)
LARGEST_K = 8
BURST = 8
OVERHEAD_S = 0.0003

Cost = Callable[[int], float]


def target_pass(tokens: int) -> float:
    """Seconds of a target pass, as a CPU has them: five tokens cost 1.36 times one."""
    return 0.010 * (1 + 0.09 * (tokens - 1))


def draft_pass(tokens: int) -> float:
    return 0.0013 + 0.0002 * tokens


def drafting(k: int) -> float:
    return draft_pass(2) + (k - 1) * draft_pass(1)


def table(cost: Cost) -> CostTable:
    return CostTable(context_tokens=1, seconds_by_tokens={size: cost(size) for size in SIZES})


def goodput(target: Cost = target_pass, draft: Cost = draft_pass) -> GoodputFactory:
    """A goodput factory that was told these costs when the engines were built."""
    return GoodputFactory(CostModel(table(target), table(draft)), BURST)


@dataclass(frozen=True)
class World:
    """What rounds really cost and how often drafts are kept.

    Attributes:
        acceptance: conditional acceptance, by tokens generated so far.
        verify: seconds of a target pass by its tokens.
        draft: seconds to draft k tokens.
        noise: standard deviation of the logarithm of each time.
        request_tokens: a new request, with a new controller, begins after so many.
        offered: probability that there is an offer at a place of the text.
    """

    acceptance: Callable[[int], float]
    verify: Cost = target_pass
    draft: Cost = drafting
    noise: float = 0.05
    request_tokens: int = 1 << 30
    offered: float = 1.0

    def seconds_per_token(self, k: int) -> float:
        """Expected, at the acceptance of the first token."""
        if k == 0:
            return self.verify(1) + OVERHEAD_S / BURST
        a = self.acceptance(0)
        return (self.draft(k) + self.verify(k + 1) + OVERHEAD_S) / sum(a**i for i in range(k + 1))

    @property
    def best(self) -> float:
        return min(self.seconds_per_token(k) for k in range(LARGEST_K + 1))


@dataclass
class Trace:
    """What a simulated deployment did."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: list[tuple[int, int, str]] = field(default_factory=list)  # (tokens before, K, reason)
    lines: list[TraceRound] = field(default_factory=list)  # what a deployment would have recorded

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.tokens

    @property
    def changes(self) -> float:
        """Share of rounds that took another K than the one before."""
        ks = [k for _, k, _ in self.rounds]
        return sum(a != b for a, b in itertools.pairwise(ks)) / len(ks)

    def share(self, reason: str) -> float:
        return sum(why == reason for _, _, why in self.rounds) / len(self.rounds)


def simulate(factory: ControllerFactory, world: World, tokens: int, seed: int = 0) -> Trace:
    """Generate so many tokens, requests one after the other."""
    rng, trace = random.Random(seed), Trace()
    while trace.tokens < tokens:
        first, until = trace.tokens, min(tokens, trace.tokens + world.request_tokens)
        controller = factory.start()
        while trace.tokens < until:
            _round(controller, world, first, until - trace.tokens, trace, rng)
    return trace


def _round(controller: KController, world: World, first: int, remaining: int, trace: Trace, rng: random.Random) -> None:
    limit = min(remaining - 1, LARGEST_K)
    there = world.offered == 1.0 or rng.random() < world.offered
    offers: Sequence[Offer] = [Offer("model", "model", limit)] if limit and there else []
    decision = controller.choose(offers, remaining, 1)
    trace.rounds.append((trace.tokens, decision.k, decision.reason))
    draft_s, accepted = 0.0, 0
    if decision.offer is None:
        assert 1 <= decision.burst <= min(remaining, BURST)
        computed = decision.burst
        verify_s = world.verify(1) * computed * rng.lognormvariate(0, world.noise)
    else:
        assert 1 <= decision.k <= limit
        while accepted < decision.k and rng.random() < world.acceptance(trace.tokens + accepted):
            accepted += 1
        computed = accepted + 1
        draft_s = world.draft(decision.k) * rng.lognormvariate(0, world.noise)
        verify_s = world.verify(decision.k + 1) * rng.lognormvariate(0, world.noise)
    key = None if decision.offer is None else decision.offer.key
    trace.lines.append(
        TraceRound(
            request=f"{first}",
            client_id="",
            round=len(trace.lines) + 1,
            position=trace.tokens - first,
            remaining=remaining,
            offers=tuple(offers),
            k=decision.k,
            burst=decision.burst,
            key=key,
            reason=decision.reason,
            draft_ids=(0,) * decision.k,
            drafted=decision.k,
            accepted=accepted,
            computed=computed,
            committed=computed,
            load=1,
            observed=True,
            draft_s=draft_s,
            verify_s=verify_s,
            overhead_s=OVERHEAD_S,
            time_s=trace.seconds,
        )
    )
    trace.seconds += draft_s + verify_s + OVERHEAD_S
    trace.tokens += computed
    times = RoundTimes(draft_s, verify_s, OVERHEAD_S)
    controller.observe(Observation(key, decision.k, accepted, computed, 1, times))
