"""The governor: in a shared batch no request's own times say what speculation costs; the deployment's rates do."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.drafting.base import Offer
from pipeline.engine.manifest import CostTable
from pipeline.orchestrator.controllers.base import ControllerFactory, Observation, RoundTimes
from pipeline.orchestrator.controllers.fixed import FixedFactory
from pipeline.orchestrator.controllers.governor import CAPS, GovernedFactory, Governor, plain_by_tables
from pipeline.orchestrator.controllers.heuristic import HeuristicFactory

from .fleet import Fleet, compute_bound, draft_rows, knee, memory_bound, tokens_per_second
from .simulation import BURST, LARGEST_K, goodput

OFFER = Offer("model", "model", LARGEST_K)
LOAD = 4


def governed() -> GovernedFactory:
    return GovernedFactory(goodput(), LARGEST_K, BURST)


def over_plain(factory: ControllerFactory, fleet: Fleet, tokens: int) -> float:
    plain = tokens_per_second(FixedFactory(0, BURST), fleet, tokens)
    return tokens_per_second(factory, fleet, tokens) / plain


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.85])
@pytest.mark.parametrize("requests", [2, 16])
@pytest.mark.parametrize("verify", [memory_bound, knee, compute_bound])
def test_never_much_slower_than_plain_at_any_load(
    verify: Callable[[int], float], requests: int, acceptance: float
) -> None:
    """Learning from nothing included: 1500 tokens per request cost at most 8 % more than plain decoding does."""
    fleet = Fleet(requests, acceptance, verify, draft_rows)
    assert over_plain(governed(), fleet, 1500 * requests) > 0.92


def test_without_it_neighbours_are_taken_for_the_price_of_plain_decoding() -> None:
    """What the governor is for: the same controller without one, in a batch that costs its rows, halves the rate."""
    fleet = Fleet(16, 0.6, knee, draft_rows)
    assert over_plain(goodput(), fleet, 8000) < 0.6
    assert over_plain(governed(), fleet, 16_000) > 0.9


@pytest.mark.parametrize(("requests", "acceptance", "gain"), [(2, 0.85, 1.6), (16, 0.85, 1.1)])
def test_what_pays_is_kept(requests: int, acceptance: float, gain: float) -> None:
    """Where drafts are almost free, trials leave most of the gain."""
    assert over_plain(governed(), Fleet(requests, acceptance, memory_bound, draft_rows), 1500 * requests) > gain


def test_a_request_alone_is_not_governed() -> None:
    """Its own prices are right, and a trial would cost it."""
    fleet = Fleet(1, 0.85, memory_bound, draft_rows)
    assert tokens_per_second(governed(), fleet, 3000) == tokens_per_second(goodput(), fleet, 3000)


def feed(governor: Governor, rate: Callable[[int], float], tokens: int, load: int = LOAD) -> list[int]:
    """Play rounds of 4 tokens of each request at a rate by cap; returns the cap of each."""
    caps = []
    for _ in range(tokens // (4 * load)):
        cap, phase = governor.cap(load)
        governor.add(phase, 4 * load, 4 * load / rate(cap), load)
        caps.append(cap)
    return caps


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.permutations([1.0, 0.8, 0.6, 0.4, 0.3]), st.integers(2, 64))
def test_the_best_cap_or_one_that_no_neighbour_betters(rates: list[float], load: int) -> None:
    """Rates by cap in any order: in the end it stays where neither a neighbour nor plain decoding is much better."""
    by_cap = dict(zip((0, 1, 2, 4, 8), rates, strict=True))
    caps = feed(Governor(8), by_cap.__getitem__, 20_000 * load, load)
    home = max(set(caps[len(caps) // 2 :]), key=caps[len(caps) // 2 :].count)
    place = list(by_cap).index(home)
    others = [0, max(place - 1, 0), min(place + 1, len(by_cap) - 1)]
    assert all(by_cap[home] >= list(by_cap.values())[other] / 1.09 for other in others)
    assert by_cap[home] >= by_cap[0] / 1.04
    assert caps[len(caps) // 2 :].count(home) > 0.9 * len(caps) / 2, home


def test_rates_that_fall_raise_an_alarm() -> None:
    """Speculation that used to pay and stops paying is left in some trials' time, not at the end of its interval."""
    governor, good = Governor(8), {0: 1.0, 1: 1.2, 2: 1.4, 4: 1.6, 8: 1.8}
    assert feed(governor, good.__getitem__, 40_000)[-1] == 8
    bad = {cap: 1.0 if cap == 0 else 0.7 for cap in good}
    caps = feed(governor, bad.__getitem__, 8000)
    assert caps.count(0) > 0.7 * len(caps)
    assert feed(governor, good.__getitem__, 80_000).count(8) > 1000, "and it comes back"


def test_loads_have_caps_of_their_own() -> None:
    governor = Governor(8)
    assert feed(governor, lambda cap: 1.0 if cap == 0 else 0.5, 32_000, load=16).count(0) > 300
    assert governor.cap(2)[0] == governor.cap(1)[0] == 8


@pytest.mark.parametrize(
    ("verify", "plain"), [(memory_bound, [32]), (knee, [16, 32]), (compute_bound, [1, 2, 4, 16, 32])]
)
def test_where_rows_cost_time_plain_decoding_is_home_first(verify: Callable[[int], float], plain: list[int]) -> None:
    """By the tables, before anything was seen; trials say otherwise if it is otherwise."""
    target = CostTable(context_tokens=1, seconds_by_tokens={n: verify(n) for n in range(1, 400)})
    draft = CostTable(context_tokens=1, seconds_by_tokens={n: draft_rows(n) for n in range(1, 400)})
    begins_plain = plain_by_tables(target, draft, LARGEST_K)
    assert [n for n in (1, 2, 4, 16, 32) if begins_plain(n)] == plain
    governor = Governor(LARGEST_K, begins_plain)
    assert governor.cap(32)[0] == 0
    assert feed(governor, lambda cap: 1.0 + cap, 80_000, 32)[-1] == LARGEST_K


def test_rounds_across_a_change_are_not_counted() -> None:
    """The first round of a request under a new cap, and rounds that were decided under another, say nothing."""
    factory = governed()
    controllers = [factory.start() for _ in range(LOAD)]
    reasons = set()
    for _ in range(400):
        decisions = [controller.choose([OFFER], 1000, LOAD) for controller in controllers]
        caps = {decision.reason == "governor" for decision in decisions}
        assert len(caps) == 1, "all requests follow one cap"
        reasons.update(decision.reason for decision in decisions)
        for controller, decision in zip(controllers, decisions, strict=True):
            computed = decision.k + 1 if decision.offer else decision.burst
            key = decision.offer.key if decision.offer else None
            seconds = 0.01 * computed if decision.offer is None else 0.02 * computed
            times = RoundTimes(0.0, seconds, 0.0)
            controller.observe(Observation(key, decision.k, decision.k, computed, LOAD, times))
    assert "governor" in reasons


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=30, max_size=30), st.integers(1, 20))
def test_decisions_name_offers_as_they_were_made(most: list[tuple[int, int]], load: int) -> None:
    """A cap lowers K, not the offer: a drafter is asked for one of its own."""
    factory = GovernedFactory(HeuristicFactory(8, 12), 12, BURST)
    made = factory.start()
    for first, second in most:
        for _ in range(20):
            offers = [Offer("ngram", "ngram-3", first), Offer("model", "model", second)]
            decision = made.choose(offers, 1000, load)
            if decision.offer is not None:
                assert decision.offer in offers and 1 <= decision.k <= decision.offer.max_k
            key = None if decision.offer is None else decision.offer.key
            times = RoundTimes(0.0, 0.01 * (1 + decision.k), 0.0)
            computed = decision.k + 1 if key else decision.burst
            made.observe(Observation(key, decision.k, decision.k, computed, load, times))


@pytest.mark.parametrize("largest", [0, 1, 3, 8, 11, 64])
def test_caps_end_at_the_largest_k(largest: int) -> None:
    """Also where the target verifies nothing at all."""
    seen = set(feed(Governor(largest), lambda cap: 1.0, 20_000))
    assert max(seen) == largest and seen <= {*CAPS, largest}


def test_threads_share_one_governor() -> None:
    """Requests report from threads of their own; nothing is lost or raised."""
    governor = Governor(8)
    threads = [threading.Thread(target=feed, args=(governor, lambda cap: 1.0 + cap, 20_000)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert feed(governor, lambda cap: 1.0 + cap, 20_000).count(8) > 800
