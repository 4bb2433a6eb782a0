"""Fixed and heuristic K, and bursts of plain decoding."""

from __future__ import annotations

import pytest

from pipeline.drafting.base import Offer
from pipeline.engine.manifest import CostTable
from pipeline.orchestrator.controllers import make_controllers
from pipeline.orchestrator.controllers.base import Burst, Decision, Observation, RoundTimes
from pipeline.orchestrator.controllers.fixed import FixedController, FixedFactory
from pipeline.orchestrator.controllers.governor import GovernedFactory
from pipeline.orchestrator.controllers.heuristic import HeuristicController, HeuristicFactory
from pipeline.orchestrator.controllers.pid import PidFactory
from pipeline.spec import ControllerSpec

OFFERS = (Offer("ngram", "ngram-3", 8), Offer("model", "model", 5))
TABLE = CostTable(context_tokens=1, seconds_by_tokens={1: 1.0})


def observe(drafted: int, accepted: int) -> Observation:
    return Observation("model", drafted, accepted, accepted + 1, 1, RoundTimes(0, 0, 0))


@pytest.mark.parametrize(("largest", "sizes"), [(8, [2, 4, 8, 8]), (1, [1, 1, 1]), (6, [2, 4, 6, 6])])
def test_bursts_double_up_to_a_bound(largest: int, sizes: list[int]) -> None:
    """2, 4, 8: a stream has no long gap; never more than remains; after a reset from 2 again."""
    burst = Burst(largest)
    assert [burst.plain(100, "why").burst for _ in sizes] == sizes
    assert burst.plain(1, "why") == Decision(None, 0, 1, "why", goes_on=True)
    burst.reset()
    assert burst.plain(100, "why").burst == min(2, largest)


def test_fixed() -> None:
    """K of the first offer, as far as it goes; one plain token where nothing is offered."""
    controller = FixedController(7, 8)
    decision = controller.choose(OFFERS, 20, 1)
    assert (decision.offer, decision.k, decision.reason) == (OFFERS[0], 7, "fixed")
    assert controller.choose(OFFERS[1:], 20, 1).k == 5
    controller.observe(observe(7, 0))
    assert controller.choose(OFFERS, 20, 1).k == 7
    for _ in range(3):
        plain = controller.choose((), 20, 1)
        assert (plain.offer, plain.k, plain.burst, plain.reason) == (None, 0, 1, "no_offer")


def test_fixed_at_0_decodes_in_bursts() -> None:
    """Offers are not looked at."""
    controller = FixedController(0, 4)
    assert [controller.choose(OFFERS, 20, 1).burst for _ in range(4)] == [2, 4, 4, 4]
    assert controller.choose(OFFERS, 3, 1).burst == 3


def test_heuristic() -> None:
    """+2 when all were kept, -1 otherwise, within 1 and the largest; rounds without drafts say nothing."""
    controller = HeuristicController(2, 6)
    seen = []
    for accepted in (True, True, True, False, False, False, False, False, False, True):
        decision = controller.choose(OFFERS, 20, 1)
        seen.append(decision.k)
        controller.observe(observe(decision.k, decision.k if accepted else decision.k - 1))
        controller.observe(Observation(None, 0, 0, 1, 1, RoundTimes(0, 0, 0)))
        controller.observe(observe(0, 0))
    assert seen == [2, 4, 6, 6, 5, 4, 3, 2, 1, 1]
    assert controller.choose((), 20, 1).reason == "no_offer"
    assert HeuristicController(9, 5).choose(OFFERS, 20, 1).k == 5
    assert HeuristicController(0, 0).choose((), 20, 1).k == 0


def test_a_short_offer_does_not_shrink_k() -> None:
    """Near the end K is capped for the round only."""
    controller = HeuristicController(4, 8)
    assert controller.choose([Offer("model", "model", 1)], 2, 1).k == 1
    assert controller.choose(OFFERS, 20, 1).k == 4


@pytest.mark.parametrize(
    ("kind", "factory"),
    [("fixed", FixedFactory), ("heuristic", HeuristicFactory), ("pid", PidFactory), ("goodput", GovernedFactory)],
)
def test_controllers_by_name(kind: str, factory: type) -> None:
    """The spec's names; each request gets a controller of its own."""
    made = make_controllers(ControllerSpec.model_validate({"kind": kind, "k": 3}), 8, TABLE, None)
    assert isinstance(made, factory)
    assert made.start() is not made.start()
