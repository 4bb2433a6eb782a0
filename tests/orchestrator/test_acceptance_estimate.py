"""How likely drafts are kept, as the controller sees it."""

from __future__ import annotations

import itertools
import random

import pytest

from pipeline.orchestrator.controllers.acceptance import (
    LOOKUP_PRIOR,
    PRIOR,
    PRIOR_WEIGHT,
    REQUEST_MEMORY,
    AcceptanceTable,
    RequestAcceptance,
    SharedAcceptance,
)


def rates(table: AcceptanceTable, positions: int, prior: float = 0.5) -> list[float]:
    return [table.rate("model", position, prior) for position in range(positions)]


def test_the_prior_before_anything_is_seen() -> None:
    """Geometric with the source's own prior; a look-up's grows with the tokens that agree, up to a longest match."""
    fresh = RequestAcceptance(SharedAcceptance())
    a = PRIOR["model"]
    assert fresh.committed("model", 3) == pytest.approx([1, 1 + a, 1 + a + a**2, 1 + a + a**2 + a**3])
    for match in (1, 5, 16, 40):
        first, second = (LOOKUP_PRIOR[min(match + position, 16)] for position in (0, 1))
        assert fresh.committed(f"ngram-{match}", 2) == pytest.approx([1, 1 + first, 1 + first + first * second])


def test_a_draft_that_is_kept_makes_the_match_longer() -> None:
    """What is seen of the second draft behind a match of 3 is what is known of the first behind one of 4."""
    table = AcceptanceTable(1.0)
    for _ in range(100):
        table.add("ngram-3", 2, 1)
    assert table.rate("ngram-3", 0, 0.5) > 0.9 > 0.1 > table.rate("ngram-4", 0, 0.5)
    assert table.rate("ngram-3", 1, 0.5) == table.rate("ngram-4", 0, 0.5)
    assert table.rate("ngram-5", 0, 0.5) == 0.5 == table.rate("ngram-2", 0, 0.5)


@pytest.mark.parametrize(("drafted", "accepted"), [(4, 0), (4, 2), (4, 4), (1, 1), (1, 0)])
def test_a_round_counts_where_it_was_tried(drafted: int, accepted: int) -> None:
    """Kept positions are evidence for, the first rejected one against, all behind it say nothing; a full house
    says nothing of what comes after (censored)."""
    table = AcceptanceTable(1.0)
    table.add("model", drafted, accepted)
    for position, rate in enumerate(rates(table, 6)):
        tried, kept = position <= accepted and position < drafted, position < accepted
        assert rate == (kept + PRIOR_WEIGHT * 0.5) / (tried + PRIOR_WEIGHT)


def test_it_is_conditional() -> None:
    """With independent positions the estimates go to the conditional rates, whatever K was; the keys are apart."""
    rng, true = random.Random(1), [0.9, 0.5, 0.7, 0.2]
    table = AcceptanceTable(1.0)
    for _ in range(4000):
        k = rng.randint(1, 4)
        accepted = 0
        while accepted < k and rng.random() < true[accepted]:
            accepted += 1
        table.add("model", k, accepted)
    assert rates(table, 4) == pytest.approx(true, abs=0.05)
    assert table.rate("ngram-3", 0, 0.5) == 0.5


def test_old_evidence_fades_at_every_position() -> None:
    """Positions that are no longer tried go back to the prior, so that a K that was bad once is tried again."""
    table = AcceptanceTable(REQUEST_MEMORY)
    for _ in range(50):
        table.add("model", 4, 1)
    assert rates(table, 2)[1] < 0.15
    for _ in range(100):
        table.add("model", 1, 1)
    first, second = rates(table, 2)
    assert first > 0.85 and second == pytest.approx(0.5, abs=0.05)


def test_the_next_request_starts_with_what_others_saw() -> None:
    """Shared evidence is the prior of a new request; the request's own overrides it."""
    shared = SharedAcceptance()
    other = RequestAcceptance(shared)
    for _ in range(200):
        other.add("model", 2, 2)
    fresh = RequestAcceptance(shared)
    assert fresh.committed("model", 2)[2] > 2.8
    for _ in range(15):
        fresh.add("model", 2, 0)
    assert fresh.committed("model", 1)[1] < 1.4
    assert other.committed("model", 1)[1] > 1.8


def test_positions_beyond_the_tried_follow_the_last_one() -> None:
    """A position nobody tried is as good as the one before it."""
    shared = SharedAcceptance()
    seen = RequestAcceptance(shared)
    for _ in range(100):
        seen.add("model", 2, 2)
    expected = seen.committed("model", 8)
    steps = [b - a for a, b in itertools.pairwise(expected)]
    assert steps == sorted(steps, reverse=True) and steps[-1] > 0.7
