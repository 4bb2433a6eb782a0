"""The same K every round."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.drafting.base import Offer
from pipeline.orchestrator.controllers.base import Burst, ControllerFactory, Decision, KController, Observation


class FixedController(KController):
    """Takes the first offer with K, or decodes plainly where K is 0 or nothing is offered.

    Args:
        k: draft tokens per round.
        burst: plain tokens per call at most.
        reason: what decisions say.
    """

    def __init__(self, k: int, burst: int, reason: str = "fixed") -> None:
        self._k = k
        self._burst = Burst(burst)
        self._reason = reason

    def choose(self, offers: Sequence[Offer], remaining: int, load: int) -> Decision:
        if self._k == 0:
            return self._burst.plain(remaining, self._reason)
        if not offers:
            # One token only: the next round may have an offer again.
            return Decision.plain(1, "no_offer")
        offer = offers[0]
        return Decision(offer, min(self._k, offer.max_k), 0, self._reason)

    def observe(self, observation: Observation) -> None:
        pass


class FixedFactory(ControllerFactory):
    """Makes fixed controllers."""

    def __init__(self, k: int, burst: int) -> None:
        self._k = k
        self._burst = burst

    def start(self) -> FixedController:
        return FixedController(self._k, self._burst)
