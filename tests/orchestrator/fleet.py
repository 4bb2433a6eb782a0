"""Many requests in one batch: a pass takes the rows of all of them, so that each pays for its neighbours' drafts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.drafting.base import Offer
from pipeline.orchestrator.controllers.base import ControllerFactory, Decision, KController, Observation, RoundTimes

from .simulation import LARGEST_K, OVERHEAD_S

OFFER = Offer("model", "model", LARGEST_K)
RowCost = Callable[[int], float]


@dataclass(frozen=True)
class Fleet:
    """Requests that are decoded together, each without end.

    Attributes:
        requests: in flight, all the time.
        acceptance: conditional acceptance of each.
        verify: seconds of a target pass by its rows, of all requests together.
        draft: seconds of a draft pass by its rows.
    """

    requests: int
    acceptance: float
    verify: RowCost
    draft: RowCost


@dataclass
class _Request:
    controller: KController
    decision: Decision | None = None
    left: int = 0  # passes that its burst still needs
    waited: float = 0.0


def tokens_per_second(factory: ControllerFactory, fleet: Fleet, tokens: int, seed: int = 0) -> float:
    """Of all requests together, in passes that all of them share."""
    rng = random.Random(seed)
    requests = [_Request(factory.start()) for _ in range(fleet.requests)]
    clock, done = 0.0, 0
    while done < tokens:
        for request in requests:
            if request.decision is None:
                request.decision = request.controller.choose([OFFER], 10_000, fleet.requests)
                request.left, request.waited = max(request.decision.burst, 1), 0.0
        drafting = [request.decision.k for request in requests if request.decision is not None]
        draft_s = sum(fleet.draft(sum(k > step for k in drafting)) for step in range(max(drafting)))
        pass_s = fleet.verify(sum(k + 1 for k in drafting)) * rng.lognormvariate(0, 0.05)
        clock += draft_s + pass_s + OVERHEAD_S
        for request in requests:
            assert request.decision is not None
            request.left -= 1
            k = request.decision.k
            request.waited += pass_s if k else pass_s + draft_s
            if request.left:
                continue
            accepted = 0
            while accepted < k and rng.random() < fleet.acceptance:
                accepted += 1
            computed = accepted + 1 if k else request.decision.burst
            done += computed
            times = RoundTimes(draft_s if k else 0.0, request.waited, OVERHEAD_S)
            key = OFFER.key if k else None
            request.controller.observe(Observation(key, k, accepted, computed, fleet.requests, times))
            request.decision = None
    return done / clock


def memory_bound(rows: int) -> float:
    """A pass that costs its weights: rows are almost free."""
    return 0.010 * (1 + 0.01 * (rows - 1))


def compute_bound(rows: int) -> float:
    """A pass that costs its rows."""
    return 0.002 + 0.008 * rows


def knee(rows: int) -> float:
    """A pass that costs its weights up to eight rows, and its rows beyond."""
    return 0.010 * (1 + 0.09 * (min(rows, 8) - 1)) + 0.004 * max(0, rows - 8)


def draft_rows(rows: int) -> float:
    return 0.0013 + 0.0002 * rows
