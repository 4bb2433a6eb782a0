"""The goodput controller against brute force, and over thousands of simulated rounds with known acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.drafting.base import Offer
from pipeline.engine.manifest import CostTable
from pipeline.orchestrator.controllers.acceptance import RequestAcceptance, SharedAcceptance
from pipeline.orchestrator.controllers.base import Decision, Observation, RoundTimes
from pipeline.orchestrator.controllers.costs import CostModel
from pipeline.orchestrator.controllers.fixed import FixedFactory
from pipeline.orchestrator.controllers.goodput import (
    FIRST_PROBE,
    LAST_PROBE,
    MARGIN,
    GoodputController,
    GoodputFactory,
)

from .simulation import BURST, World, drafting, goodput, simulate, table, target_pass

MODEL = Offer("model", "model", 8)


class KnownAcceptance(RequestAcceptance):
    """Conditional acceptance that is told, not learnt."""

    def __init__(self, rates: dict[str, list[float]]) -> None:
        super().__init__(SharedAcceptance())
        self.known = rates

    def committed(self, key: str, largest: int) -> list[float]:
        expected, reached = [1.0], 1.0
        for rate in self.known[key][:largest]:
            reached *= rate
            expected.append(expected[-1] + reached)
        return expected


class KnownCosts(CostModel):
    """Costs that are told, not learnt."""

    def __init__(self, verify: Sequence[float], draft: dict[str, float], overhead: float) -> None:
        super().__init__(CostTable(context_tokens=1, seconds_by_tokens={1: 1.0}), None)
        self.known = verify, draft, overhead

    def verify_s(self, k: int, load: int) -> float:
        return self.known[0][k]

    def draft_s(self, source: str, k: int, load: int) -> float:
        return self.known[1][source] * k

    def rounds_s(self, source: str, largest: int, load: int, ready: bool = False) -> list[float]:
        return [
            (0.0 if ready else self.draft_s(source, k, load)) + self.verify_s(k, load) + self.overhead_s(load)
            for k in range(1, largest + 1)
        ]

    def overhead_s(self, load: int) -> float:
        return self.known[2]


RATES = st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    increments=st.lists(st.floats(0.0, 1.0), min_size=9, max_size=9),
    draft=st.floats(0.0, 0.5),
    overhead=st.floats(0.0, 0.5),
    rates=st.tuples(RATES, RATES),
    most=st.tuples(st.integers(0, 8), st.integers(0, 8)),
)
def test_the_cheapest_k_of_all_offers(
    increments: list[float], draft: float, overhead: float, rates: tuple[list[float], ...], most: tuple[int, int]
) -> None:
    """The first decision is the minimum over every K of every offer and plain decoding, by brute force."""
    verify = [1.0 + sum(increments[:k]) for k in range(9)]
    offers = [Offer("ngram", "ngram-4", most[0]), Offer("model", "model", most[1])]
    acceptance = KnownAcceptance({"ngram-4": rates[0], "model": rates[1]})
    cost_of = {"ngram": 0.0, "model": draft}
    controller = GoodputController(KnownCosts(verify, cost_of, overhead), acceptance, BURST)
    prices = {
        (offer, k): (cost_of[offer.source] * k + verify[k] + overhead) / acceptance.committed(offer.key, k)[k]
        for offer in offers
        for k in range(1, offer.max_k + 1)
    }
    decision = controller.choose(offers, 20, 1)
    plain = (1.0 + overhead / BURST) * (1 - MARGIN)
    if not prices:
        assert (decision.offer, decision.reason) == (None, "no_offer")
        return
    best = min(prices.values())
    assume(abs(best - plain) > 1e-9)
    if best < plain:
        assert decision.offer is not None and decision.reason == "pays"
        assert prices[decision.offer, decision.k] == pytest.approx(best)
    else:
        assert (decision.offer, decision.burst, decision.reason) == (None, 2, "plain_faster")


def controller_with(acceptance: float) -> tuple[GoodputController, KnownAcceptance]:
    known = KnownAcceptance({"model": [acceptance] * 8})
    verify = [target_pass(k + 1) for k in range(9)]
    return GoodputController(KnownCosts(verify, {"model": 0.0015}, 0.0003), known, BURST), known


def observe(controller: GoodputController, decision: Decision, accepted: int) -> None:
    key = None if decision.offer is None else decision.offer.key
    computed = decision.burst if key is None else accepted + 1
    controller.observe(Observation(key, decision.k, accepted, computed, 1, RoundTimes(0.001, 0.01, 0.0003)))


def test_plain_decoding_grows_its_bursts() -> None:
    """While it does not pay: 2, 4, 8 tokens per call, and from 2 again after a probe."""
    controller, _ = controller_with(0.0)
    bursts = []
    for _ in range(15):
        decision = controller.choose([MODEL], 100, 1)
        observe(controller, decision, 0)
        bursts.append(decision.burst if decision.offer is None else -decision.k)
    assert bursts == [2, 4, *[8] * 8, -1, 2, 4, 8, 8]


@pytest.mark.parametrize(("gain", "reason"), [(0.5 * MARGIN, "plain_faster"), (1.5 * MARGIN, "pays")])
def test_plain_decoding_is_left_for_a_real_gain(gain: float, reason: str) -> None:
    """Speculation must promise 2 %."""
    costs = KnownCosts([1.0] + [2.0 * (1 - gain)] * 8, {"model": 0.0}, 0.0)
    controller = GoodputController(costs, KnownAcceptance({"model": [1.0] + [0.0] * 7}), BURST)
    assert controller.choose([MODEL], 100, 1).reason == reason


def plain_until_probe(controller: GoodputController, accepted: bool) -> int:
    plain = 0
    while True:
        decision = controller.choose([MODEL], 10_000, 1)
        observe(controller, decision, decision.k if accepted else 0)
        if decision.offer is not None:
            assert decision.reason == "probe" and decision.k <= 2
            return plain
        plain += decision.burst


def test_probes_get_rarer_and_come_back() -> None:
    """Twice as many plain tokens before each probe that fails, to a bound; one that keeps all is followed at once."""
    controller, _ = controller_with(0.0)
    waits = [plain_until_probe(controller, accepted=False) for _ in range(6)]
    for wait, expected in zip(waits, [FIRST_PROBE, 128, LAST_PROBE, LAST_PROBE, LAST_PROBE, LAST_PROBE], strict=True):
        assert expected <= wait < expected + BURST
    plain_until_probe(controller, accepted=True)
    assert plain_until_probe(controller, accepted=True) == 0
    assert plain_until_probe(controller, accepted=False) == 0
    assert 2 * FIRST_PROBE <= plain_until_probe(controller, accepted=False) < 2 * FIRST_PROBE + BURST


def test_a_probe_that_failed_to_draft_is_tried_again() -> None:
    """A round that is not observed (its draft failed, or prefilled) leaves the probe due."""
    controller, _ = controller_with(0.0)
    while controller.choose([MODEL], 10_000, 1).offer is None:
        observe(controller, Decision.plain(8, ""), 0)
    assert controller.choose([MODEL], 10_000, 1).reason == "probe"


def test_k_stays_for_a_small_gain() -> None:
    """K changes only where it promises 2 %: neighbours of almost equal price do not alternate."""
    controller, known = controller_with(0.7)
    first = controller.choose([MODEL], 100, 1).k
    for rate in (0.71, 0.69, 0.72, 0.7, 0.705):
        known.known["model"] = [rate] * 8
        assert controller.choose([MODEL], 100, 1).k == first
    known.known["model"] = [0.95] * 8
    assert controller.choose([MODEL], 100, 1).k > first


def test_the_price_of_plain_decoding_is_kept_up_to_date() -> None:
    """Speculation that pays is interrupted by a few plain tokens after 16 rounds: a guess is no comparison."""
    controller, _ = controller_with(0.9)
    reasons = []
    for _ in range(18):
        decision = controller.choose([MODEL], 100, 1)
        observe(controller, decision, decision.k)
        reasons.append((decision.reason, decision.burst))
    assert reasons == [("pays", 0)] * 16 + [("plain_check", 4), ("pays", 0)]


def test_bursts_begin_small_after_speculation() -> None:
    """Look-up that paid may match again soon, and a burst would run past it."""
    controller, known = controller_with(0.9)
    assert [controller.choose([], 100, 1).burst for _ in range(3)] == [2, 4, 8]
    assert controller.choose([MODEL], 100, 1).reason == "pays"
    assert [controller.choose([], 100, 1).burst for _ in range(4)] == [2, 4, 8, 8]
    known.known["model"] = [0.0] * 8
    assert controller.choose([MODEL], 100, 1).reason == "plain_faster"
    assert controller.choose([], 100, 1).burst == 8


# --- simulations: 5 % noise on every time, results are means over seeds ---------------------------------------


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def cost(world: World, factory: Callable[[], object] = goodput, tokens: int = 3000, seeds: int = 4) -> float:
    return mean([simulate(factory(), world, tokens, seed).seconds_per_token for seed in range(seeds)])  # type: ignore[arg-type]


@pytest.mark.parametrize("request_tokens", [128, 1 << 30])
@pytest.mark.parametrize(("acceptance", "loss"), [(0.0, 1.02), (0.5, 1.08), (0.7, 1.05), (0.9, 1.05)])
def test_close_to_the_best_fixed_k(acceptance: float, loss: float, request_tokens: int) -> None:
    """In the long run, measuring, probing and mistakes included."""
    world = World(lambda position: acceptance, request_tokens=request_tokens)
    assert cost(world) < loss * world.best


def test_the_simulation_knows_fixed_k() -> None:
    """Simulated fixed K costs what the formula says: the yardstick itself is right."""
    world = World(lambda position: 0.7)
    for k in (0, 1, 3, 8):
        assert cost(world, partial(FixedFactory, k, BURST)) == pytest.approx(world.seconds_per_token(k), rel=0.03)


@pytest.mark.parametrize("request_tokens", [64, 1 << 30])
@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.3])
def test_never_much_slower_than_plain(acceptance: float, request_tokens: int) -> None:
    """Text that the draft cannot guess costs the probes, less than 5 % of plain decoding."""
    world = World(lambda position: acceptance, request_tokens=request_tokens)
    assert cost(world) < 1.05 * world.seconds_per_token(0)


@pytest.mark.parametrize("offered", [0.1, 0.3, 0.6])
def test_rare_offers_are_not_slept_through(offered: float) -> None:
    """Where offers come now and then and a call costs hardly anything, the worst case for bursts in between, they cost
    a bounded part of what single tokens throughout would."""
    world = World(lambda position: 0.8, draft=lambda k: 0.0, offered=offered)

    def single() -> GoodputFactory:
        return GoodputFactory(CostModel(table(target_pass), None), 1)

    def bursts() -> GoodputFactory:
        return GoodputFactory(CostModel(table(target_pass), None), BURST)

    assert cost(world, bursts) < 1.4 * cost(world, single)


def flat(tokens: int) -> float:
    return 0.010


def dear_plain(tokens: int) -> float:
    return 0.020 if tokens == 1 else target_pass(tokens)


@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.5, 0.7])
@pytest.mark.parametrize(
    ("told", "verify", "slow_draft"),
    [(flat, lambda tokens: 0.010 * (1 + 0.36 * (tokens - 1)), 3.0), (dear_plain, target_pass, 1.0)],
    ids=["verify dearer than the table says", "plain cheaper than the table says"],
)
def test_a_wrong_table_does_not_last(
    told: Callable[[int], float], verify: Callable[[int], float], slow_draft: float, acceptance: float
) -> None:
    """Measurements replace the table, also for plain decoding while speculation seems to pay."""
    world = World(lambda position: acceptance, verify, lambda k: slow_draft * drafting(k), request_tokens=256)
    assert cost(world, partial(goodput, told)) < 1.05 * min(world.seconds_per_token(0), world.best * 1.05)


@pytest.mark.parametrize("hard", [300, 2000])
def test_speculation_comes_back_when_the_text_gets_easy(hard: int) -> None:
    """One request, nothing accepted at first, then 0.95: probes bring speculation back in some 200 tokens."""
    for seed in range(4):
        world = World(lambda position: 0.0 if position < hard else 0.95)
        trace = simulate(goodput(), world, hard + 1000, seed)
        before = [k for position, k, _ in trace.rounds if hard // 2 < position < hard]
        assert mean([k > 0 for k in before]) < 0.1
        late = [k for position, k, _ in trace.rounds if position > hard + LAST_PROBE + 60]
        assert mean([k > 0 for k in late]) > 0.9


def test_it_does_not_flap() -> None:
    """Clear text: the same K almost always. At break-even: plain or speculating, the price is that of plain."""
    for acceptance in (0.0, 0.7, 0.9):
        traces = [simulate(goodput(), World(lambda position: acceptance), 3000, seed) for seed in range(3)]  # noqa: B023
        assert mean([trace.changes for trace in traces]) < (0.15 if acceptance == 0.0 else 0.06)
    even = World(lambda position: 0.29)
    assert even.best == pytest.approx(even.seconds_per_token(0), rel=0.01)
    traces = [simulate(goodput(), even, 3000, seed) for seed in range(3)]
    assert mean([trace.changes for trace in traces]) < 0.2
    assert mean([trace.seconds_per_token for trace in traces]) < 1.02 * even.seconds_per_token(0)
