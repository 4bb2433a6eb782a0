"""What a round costs: the table of build time, corrected by what was measured."""

from __future__ import annotations

import pytest

from pipeline.engine.manifest import CostTable
from pipeline.orchestrator.controllers.costs import FIRST_CHECK, LAST_CHECK, CostModel

TARGET = CostTable(context_tokens=1, seconds_by_tokens={1: 0.010, 2: 0.012, 4: 0.016, 8: 0.024})
DRAFT = CostTable(context_tokens=1, seconds_by_tokens={1: 0.002, 2: 0.003})


def make() -> CostModel:
    return CostModel(TARGET, DRAFT)


def test_the_table_before_anything_is_measured() -> None:
    """K drafts are K + 1 tokens at the target; a draft of K is a pass of two tokens and K - 1 of one."""
    costs = make()
    assert [costs.verify_s(k, 1) for k in (0, 1, 3)] == pytest.approx([0.010, 0.012, 0.016])
    assert costs.verify_s(5, 1) == pytest.approx(0.020), "between measured sizes"
    assert [costs.draft_s("model", k, 1) for k in (1, 2, 4)] == pytest.approx([0.003, 0.005, 0.009])
    assert costs.draft_s("ngram", 4, 1) == 0.0
    assert CostModel(TARGET, None).draft_s("model", 4, 1) == 0.0


def test_measurements_overrule_the_table() -> None:
    """What was measured, again and again, is the price; in between it lies between table and measurement."""
    costs = make()
    costs.add_round("model", 3, 0.007, 0.016, 0.001, 1)  # the verify as the table says
    assert costs.verify_s(3, 1) == pytest.approx(0.016)
    costs.add_round("model", 3, 0.007, 0.032, 0.001, 1)
    assert 0.016 < costs.verify_s(3, 1) < 0.032
    for _ in range(200):
        costs.add_round("model", 3, 0.020, 0.032, 0.001, 1)
    assert costs.verify_s(3, 1) == pytest.approx(0.032, rel=1e-3)
    assert costs.draft_s("model", 3, 1) == pytest.approx(0.020, rel=2e-2)
    assert costs.overhead_s(1) == pytest.approx(0.001, rel=2e-2)


def test_a_wrong_shape_is_learnt() -> None:
    """A verify that costs twice what the table says beside a plain token does so after both were measured."""
    costs = make()
    for _ in range(300):
        costs.add_plain(1, 0.010, 0.001, 1)
        costs.add_round("model", 3, 0.007, 0.032, 0.001, 1)
    assert costs.verify_s(3, 1) / costs.verify_s(0, 1) == pytest.approx(3.2, rel=0.03)


def test_prices_are_compared_at_one_speed_of_the_machine() -> None:
    """Plain tokens were measured on a fast machine, verifies on the same one when it was slow: nothing is concluded."""
    costs = make()
    for _ in range(40):
        costs.add_plain(4, 0.040, 0.001, 1)
    for _ in range(20):
        costs.add_round("model", 3, 0.0105, 0.024, 0.001, 1)  # all of it 1.5 times slower
    assert costs.verify_s(3, 1) / costs.verify_s(0, 1) == pytest.approx(1.6, rel=0.15)
    assert costs.verify_s(0, 1) == pytest.approx(0.015, rel=0.15)


def test_a_slow_machine_is_slow_in_every_k() -> None:
    """Where all that was measured takes twice as long as the table says, so does the rest."""
    costs = make()
    for _ in range(60):
        costs.add_round("model", 3, 0.014, 0.032, 0.001, 1)
    assert costs.verify_s(7, 1) == pytest.approx(0.048, rel=1e-2)
    assert costs.verify_s(0, 1) == pytest.approx(0.020, rel=1e-2)
    assert costs.draft_s("model", 1, 1) == pytest.approx(0.006, rel=1e-2)


def test_the_past_is_forgotten() -> None:
    """A machine that gets faster is believed within some dozens of rounds."""
    costs = make()
    for _ in range(200):
        costs.add_plain(4, 0.080, 0.001, 1)
    assert costs.verify_s(0, 1) == pytest.approx(0.020, rel=1e-3)
    for _ in range(12):
        costs.add_plain(4, 0.040, 0.001, 1)
    assert costs.verify_s(0, 1) == pytest.approx(0.010, rel=2e-2)


def test_a_stalled_round_shifts_little() -> None:
    """A machine that stood still for a second is not a slow one; one that stays slow is."""
    costs = make()
    for _ in range(20):
        costs.add_round("model", 3, 0.007, 0.016, 0.001, 1)
    costs.add_round("model", 3, 1.0, 1.0, 1.0, 1)
    assert costs.verify_s(3, 1) == pytest.approx(0.016, rel=0.3)
    assert costs.verify_s(3, 1) / costs.verify_s(0, 1) == pytest.approx(1.6, rel=0.05)
    assert costs.draft_s("model", 3, 1) / costs.verify_s(0, 1) == pytest.approx(0.7, rel=0.1)
    for _ in range(60):
        costs.add_round("model", 3, 0.007, 0.080, 0.001, 1)
    assert costs.verify_s(3, 1) == pytest.approx(0.080, rel=0.01)


def test_a_burst_is_as_many_measurements() -> None:
    """Four tokens of 20 ms in one burst move the price further than one, and the time is per token."""
    one, burst = make(), make()
    one.add_plain(1, 0.020, 0.0, 1)
    burst.add_plain(4, 0.080, 0.0, 1)
    assert 0.010 < one.verify_s(0, 1) < burst.verify_s(0, 1) <= 0.020


@pytest.mark.parametrize(("loads", "same"), [((1, 2), False), ((3, 4), True), ((4, 5), False), ((5, 8), True)])
def test_loads_are_apart(loads: tuple[int, int], same: bool) -> None:
    """Buckets of 1, 2, 3-4, 5-8 requests; what is measured in one says nothing of another."""
    costs = make()
    for _ in range(40):
        costs.add_plain(1, 1.0, 0.1, loads[0])
    assert (costs.verify_s(0, loads[1]) > 0.1) == same
    assert (costs.overhead_s(loads[1]) > 0.001) == same


def test_the_price_of_plain_decoding_goes_out_of_date() -> None:
    """After 16 speculative rounds first, then twice as many each time it was looked up; per load."""
    costs = make()
    waits = []
    for _ in range(7):
        rounds = 0
        while not costs.plain_out_of_date(1):
            costs.add_round("model", 3, 0.007, 0.016, 0.001, 1)
            rounds += 1
        waits.append(rounds)
        costs.add_plain(4, 0.040, 0.001, 1)
        assert not costs.plain_out_of_date(1) and not costs.plain_out_of_date(2)
    assert waits == [FIRST_CHECK, 32, 64, 128, LAST_CHECK, LAST_CHECK, LAST_CHECK]


def test_a_round_costs_what_its_parts_cost() -> None:
    """For every K at once, after rounds that moved speed, shapes and overhead; at another load, too."""
    for draft in (DRAFT, None):
        costs = CostModel(TARGET, draft)
        for k, load in ((1, 1), (3, 1), (3, 3), (5, 3)):
            costs.add_round("model", k, 0.004 * k, 0.013 + 0.002 * k, 0.0007, load)
            costs.add_plain(4, 0.05, 0.0004, load)
        for source in ("model", "ngram"):
            for load in (1, 3, 40):
                rounds = costs.rounds_s(source, 8, load)
                assert rounds == [
                    costs.draft_s(source, k, load) + costs.verify_s(k, load) + costs.overhead_s(load)
                    for k in range(1, 9)
                ]
        assert costs.rounds_s("model", 8, 1) != costs.rounds_s("model", 8, 3)
