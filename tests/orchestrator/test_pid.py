"""The PID controller: bounds for any history, anti-windup, the set point, probes; and its price in the simulation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.drafting.base import Offer
from pipeline.orchestrator.controllers.base import ControllerFactory, Observation, RoundTimes
from pipeline.orchestrator.controllers.heuristic import HeuristicFactory
from pipeline.orchestrator.controllers.pid import FIRST_PROBE, LAST_PROBE, PidController, PidFactory

from .simulation import BURST, LARGEST_K, World, goodput, simulate

OFFER = Offer("model", "model", LARGEST_K)
TIMES = RoundTimes(0.001, 0.01, 0.0)
COMMON = settings(derandomize=True, deadline=None, max_examples=100)


def controller(k: int = 4, largest: int = LARGEST_K, set_point: float = 0.5) -> PidController:
    return PidController(k, largest, set_point, BURST)


def play(made: PidController, accepted: Callable[[int], int], offer: Offer = OFFER, remaining: int = 1000) -> int:
    """One round; returns its K."""
    decision = made.choose([offer], remaining, 1)
    k = decision.k
    kept = accepted(k) if k else 0
    key = None if decision.offer is None else decision.offer.key
    made.observe(Observation(key, k, kept, decision.burst or kept + 1, 1, TIMES))
    return k


@COMMON
@given(
    k=st.integers(0, 64),
    largest=st.integers(0, 12),
    set_point=st.floats(0.01, 0.99),
    rounds=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 100)), max_size=60),
)
def test_k_and_burst_stay_within_bounds(
    k: int, largest: int, set_point: float, rounds: list[tuple[int, int, int]]
) -> None:
    """For any offers, acceptance and remaining tokens: 0 <= K <= both caps, 1 <= burst <= remaining."""
    made = controller(k, largest, set_point)
    for most, kept, remaining in rounds:
        offers = [Offer("model", "model", most)] if most else []
        decision = made.choose(offers, remaining, 1)
        assert 0 <= made.k <= largest
        if decision.offer is None:
            assert decision.k == 0 and 1 <= decision.burst <= min(remaining, BURST)
            made.observe(Observation(None, 0, 0, decision.burst, 1, TIMES))
        else:
            assert 1 <= decision.k <= min(largest, most) and decision.burst == 0
            accepted = min(kept, decision.k)
            made.observe(Observation("model", decision.k, accepted, accepted + 1, 1, TIMES))


@settings(derandomize=True, deadline=None, max_examples=20)
@given(easy=st.integers(10, 1000), set_point=st.floats(0.1, 0.9))
def test_no_windup(easy: int, set_point: float) -> None:
    """However long everything was accepted, K leaves its bound as soon as after a short time, and so does 0."""

    def rounds_to_leave(stretch: int) -> int:
        made = controller(set_point=set_point)
        for _ in range(stretch):
            play(made, lambda k: k)
        assert made.k == LARGEST_K
        rounds = 0
        while made.k == LARGEST_K:
            play(made, lambda k: 0)
            rounds += 1
        return rounds

    assert rounds_to_leave(150 + easy) == rounds_to_leave(150) <= 5


@pytest.mark.parametrize("set_point", [0.3, 0.5, 0.7])
def test_the_set_point_is_held(set_point: float) -> None:
    """Blocks of 4 kept tokens, whatever K: the share settles where it should, unless a bound is nearer."""
    made = controller(set_point=set_point)
    ks = [play(made, lambda k: min(k, 4)) for _ in range(400)]
    late = ks[200:]
    wanted = min(4 / set_point, LARGEST_K)
    assert sum(late) / len(late) == pytest.approx(wanted, abs=0.6)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(low=st.floats(0.0, 0.9), gap=st.floats(0.1, 1.0))
def test_more_acceptance_more_drafts(low: float, gap: float) -> None:
    """The mean K over a thousand rounds is larger for a text that is easier."""

    def mean_k(acceptance: float) -> float:
        trace = simulate(PidFactory(4, LARGEST_K, 0.5, BURST), World(lambda position: acceptance), 3000, 1)
        return sum(k for _, k, _ in trace.rounds) / len(trace.rounds)

    assert mean_k(min(low + gap, 1.0)) > mean_k(low) - 0.15


def test_probes_get_rarer_and_bring_speculation_back() -> None:
    """K = 0 after refusals; K = 1 tried after 64 plain tokens, then 128, 256, 256; one that is kept starts anew."""
    made = controller()

    def plain_until_probe(accepted: bool) -> int:
        plain = 0
        while True:
            decision = made.choose([OFFER], 10_000, 1)
            if decision.offer is None:
                assert decision.reason == "below_set_point"
                plain += decision.burst
                made.observe(Observation(None, 0, 0, decision.burst, 1, TIMES))
                continue
            assert (decision.reason, decision.k) == ("probe", 1)
            made.observe(Observation("model", 1, int(accepted), 1 + accepted, 1, TIMES))
            return plain

    while made.k:
        play(made, lambda k: 0)
    for wanted in (FIRST_PROBE, 2 * FIRST_PROBE, LAST_PROBE, LAST_PROBE):
        assert wanted <= plain_until_probe(accepted=False) < wanted + BURST
    plain_until_probe(accepted=True)
    assert made.k == 1
    assert [play(made, lambda k: k) for _ in range(40)][-1] == LARGEST_K


def test_no_offer_and_no_room() -> None:
    """Single tokens while an offer may come back; a largest K of 0 never speculates."""
    made = controller()
    assert [made.choose([], 100, 1).burst for _ in range(3)] == [1, 1, 1]
    none = controller(largest=0)
    assert all(play(none, lambda k: 0) == 0 for _ in range(200))


# --- simulations: the same worlds as goodput's; pid knows no time, so its promise is smaller -------------------


def cost(factory: Callable[[], ControllerFactory], world: World) -> float:
    return sum(simulate(factory(), world, 3000, seed).seconds_per_token for seed in range(4)) / 4


pid = partial(PidFactory, 4, LARGEST_K, 0.5, BURST)
heuristic = partial(HeuristicFactory, 4, LARGEST_K)


@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.4])
def test_hard_text_costs_little(acceptance: float) -> None:
    """Within 4 % of plain decoding, where the heuristic, which never chooses 0, loses up to a fifth."""
    world = World(lambda position: acceptance, request_tokens=512)
    assert cost(pid, world) < 1.04 * world.seconds_per_token(0)
    if acceptance < 0.4:
        assert cost(pid, world) < cost(heuristic, world)


@pytest.mark.parametrize(("acceptance", "loss"), [(0.7, 1.10), (0.8, 1.10), (0.9, 1.04), (0.97, 1.04)])
def test_easy_text_pays(acceptance: float, loss: float) -> None:
    """Near the best fixed K, which goodput is nearer to still: it looks at the time as well."""
    world = World(lambda position: acceptance, request_tokens=512)
    assert cost(pid, world) < loss * world.best
    assert cost(goodput, world) < cost(pid, world) * 1.01
