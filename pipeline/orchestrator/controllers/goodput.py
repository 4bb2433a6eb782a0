"""The K with the least expected time per committed token (after SmartSpec, arXiv 2406.14066), 0 included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.drafting.base import Offer
from pipeline.orchestrator.controllers.acceptance import RequestAcceptance, SharedAcceptance
from pipeline.orchestrator.controllers.base import Burst, ControllerFactory, Decision, KController, Observation
from pipeline.orchestrator.controllers.costs import CostModel

MARGIN = 0.02  # speculation must promise at least this much to leave plain decoding, and K to change
# Plain tokens before speculation is tried again; doubles while it does not pay. A request's first draft takes in its
# whole prompt, one or two plain tokens' time: after 64 of them a probe costs at most three percent.
FIRST_PROBE = 64
LAST_PROBE = 256
CHECK_BURST = 4  # plain tokens that bring the price of plain decoding up to date


@dataclass(frozen=True)
class _Choice:
    offer: Offer
    k: int
    seconds_per_token: float


class GoodputController(KController):
    """Compares every K of every offer with plain decoding, by measured time and estimated acceptance.

    Args:
        costs: shared cost model.
        acceptance: this request's estimates.
        burst: plain tokens per call at most.
    """

    def __init__(self, costs: CostModel, acceptance: RequestAcceptance, burst: int) -> None:
        self._costs = costs
        self._acceptance = acceptance
        self._largest_burst = burst
        self._burst = Burst(burst)
        self._last_k: dict[str, int] = {}
        self._plain_tokens = 0
        self._probe_after = FIRST_PROBE
        self._probing = False

    def choose(self, offers: Sequence[Offer], remaining: int, load: int) -> Decision:
        best = min(
            (self._best(offer, load) for offer in offers if offer.max_k > 0),
            key=lambda choice: choice.seconds_per_token,
            default=None,
        )
        if best is None:
            return self._plain(remaining, "no_offer")
        plain = self._costs.verify_s(0, load) + self._costs.overhead_s(load) / self._largest_burst
        if best.seconds_per_token < plain * (1 - MARGIN):
            if self._costs.plain_out_of_date(load):
                return Decision.plain(min(CHECK_BURST, self._largest_burst, remaining), "plain_check")
            self._last_k[best.offer.key] = best.k
            return self._speculate(best.offer, best.k, "pays")
        if self._plain_tokens >= self._probe_after:
            self._probing = True
            return self._speculate(best.offer, min(best.k, 2), "probe")
        return self._plain(remaining, "plain_faster")

    def observe(self, observation: Observation) -> None:
        times, load = observation.times, observation.load
        if observation.key is None:
            self._plain_tokens += observation.computed
            if observation.computed:
                self._costs.add_plain(observation.computed, times.verify_s, times.overhead_s, load)
            return
        source = observation.key.partition("-")[0]
        drafted, accepted = observation.drafted, observation.accepted
        self._acceptance.add(observation.key, drafted, accepted)
        draft_s = None if observation.ahead else times.draft_s
        self._costs.add_round(source, drafted, draft_s, times.verify_s, times.overhead_s, load)
        if self._probing:
            self._probing = False
            if accepted == drafted:
                self._probe_after = FIRST_PROBE  # the text may have become easy: the next round probes again
            else:
                self._plain_tokens = 0
                self._probe_after = min(2 * self._probe_after, LAST_PROBE)

    def _best(self, offer: Offer, load: int) -> _Choice:
        committed = self._acceptance.committed(offer.key, offer.max_k)
        rounds = self._costs.rounds_s(offer.source, offer.max_k, load, offer.ready)
        times = {k: round_s / committed[k] for k, round_s in enumerate(rounds, 1)}
        k = min(times, key=times.__getitem__)
        last = self._last_k.get(offer.key)
        if last in times and times[k] > times[last] * (1 - MARGIN):
            k = last
        return _Choice(offer, k, times[k])

    def _speculate(self, offer: Offer, k: int, reason: str) -> Decision:
        self._burst.reset()
        return Decision(offer, k, 0, reason)

    def _plain(self, remaining: int, reason: str) -> Decision:
        return self._burst.plain(remaining, reason)


class GoodputFactory(ControllerFactory):
    """Makes goodput controllers that share costs and prior acceptance."""

    def __init__(self, costs: CostModel, burst: int) -> None:
        self._costs = costs
        self._shared = SharedAcceptance()
        self._burst = burst

    def start(self) -> GoodputController:
        return GoodputController(self._costs, RequestAcceptance(self._shared), self._burst)
