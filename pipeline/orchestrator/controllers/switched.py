"""Another controller, for as long as the deployment-wide switch lets it decide."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.drafting.base import Offer
from pipeline.orchestrator.controllers.base import Burst, Decision, KController, Observation
from pipeline.orchestrator.switch import SpeculationSwitch

SWITCHED_OFF, SWITCHED = "switched_off", "switched"
SWITCH_REASONS = (SWITCHED_OFF, SWITCHED)


class SwitchedController(KController):
    """Follows the switch; under `auto`, and where the request itself asks for no more, the inner controller.

    Args:
        inner: what decides otherwise; learns from every round.
        switch: of the deployment.
        own: K that the request named: the switch may lower it, never raise it.
        burst: plain tokens per call at most.
    """

    def __init__(self, inner: KController, switch: SpeculationSwitch, own: int | None, burst: int) -> None:
        self._inner = inner
        self._switch = switch
        self._own = own
        self._burst = Burst(burst)

    def choose(self, offers: Sequence[Offer], remaining: int, load: int) -> Decision:
        k = self._switch.k
        if k is None or (self._own is not None and self._own <= k):
            return self._inner.choose(offers, remaining, load)
        if k == 0:
            return self._burst.plain(remaining, SWITCHED_OFF)
        self._burst.reset()
        if not offers:
            return Decision.plain(1, "no_offer")
        return Decision(offers[0], min(k, offers[0].max_k), 0, SWITCHED)

    def observe(self, observation: Observation) -> None:
        self._inner.observe(observation)
