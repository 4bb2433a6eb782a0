"""Two more after a round that kept everything, one less otherwise (Hugging Face's assisted generation)."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.drafting.base import Offer
from pipeline.orchestrator.controllers.base import ControllerFactory, Decision, KController, Observation


class HeuristicController(KController):
    """Grows and shrinks K by the last round alone; never looks at time, so never chooses 0.

    Args:
        k: first K.
        largest: K never exceeds it.
    """

    GROW, SHRINK = 2, 1

    def __init__(self, k: int, largest: int) -> None:
        self._k = max(1, min(k, largest))
        self._largest = largest

    def choose(self, offers: Sequence[Offer], remaining: int, load: int) -> Decision:
        if not offers:
            return Decision.plain(1, "no_offer")
        offer = offers[0]
        return Decision(offer, min(self._k, offer.max_k), 0, "heuristic")

    def observe(self, observation: Observation) -> None:
        if not observation.drafted:
            return
        change = self.GROW if observation.accepted == observation.drafted else -self.SHRINK
        self._k = max(1, min(self._k + change, self._largest))


class HeuristicFactory(ControllerFactory):
    """Makes heuristic controllers."""

    def __init__(self, k: int, largest: int) -> None:
        self._k = k
        self._largest = largest

    def start(self) -> HeuristicController:
        return HeuristicController(self._k, self._largest)
