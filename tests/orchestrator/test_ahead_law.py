"""Drafts made ahead leave the law of the text alone: two rounds by enumeration, and what would not."""

from __future__ import annotations

from typing import Any

import pytest
from sampling.enumeration import World, make_world

from pipeline.drafting import model as model_draft
from pipeline.drafting.ahead import AheadCall
from pipeline.drafting.base import Draft
from pipeline.engine.step import StepResult
from pipeline.sampling.random import call_seed
from pipeline.sampling.rules import AcceptanceRule, BlockRule, MatchRule, TokenRule

from .ahead_rounds import two_rounds

EXACT = 1e-12
PLANTED = 1e-3
RULES = [TokenRule(), BlockRule(), MatchRule()]


def world(seed: int, vocab: int = 3, k: int = 1, family: str = "smooth") -> World:
    return make_world(seed, vocab, 2 * k + 1, family, one_hot=False)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("family", ["smooth", "sparse", "same", "peaked"])
def test_two_rounds_have_the_targets_law(rule: AcceptanceRule, family: str) -> None:
    found = two_rounds(world(1, family=family), rule, 1)
    assert found.deviation < EXACT and found.used > 0.02


@pytest.mark.parametrize("rule", [BlockRule(), MatchRule()], ids=lambda rule: rule.name)
def test_blocks_of_two(rule: AcceptanceRule) -> None:
    found = two_rounds(world(2, vocab=2, k=2), rule, 2)
    assert found.deviation < EXACT and found.used > 0.05


def test_the_enumeration_without_it() -> None:
    found = two_rounds(world(1), TokenRule(), 1, ahead=False)
    assert found.deviation < EXACT and found.used == 0.0


def test_the_check_of_the_bonus_is_for_acceptance_not_for_exactness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts for another text are bad drafts with honest laws: the rules make the target's law of any of them."""
    monkeypatch.setattr(AheadCall, "_fits", lambda self, result: True)
    for rule in RULES:
        assert two_rounds(world(1), rule, 1).deviation < EXACT


# Planted bugs: each is seen.


def seeds_of(role: str) -> Any:
    """The call ahead takes another role's seed."""
    return lambda seed, index, own: call_seed(seed, index, role if own == "ahead" else own)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_planted_the_seed_of_the_fresh_drafts(monkeypatch: pytest.MonkeyPatch, rule: AcceptanceRule) -> None:
    """A fresh draft after a miss is then drawn by a number that is known to have missed; match looks at no q."""
    monkeypatch.setattr(model_draft, "call_seed", seeds_of("draft"))
    deviation = two_rounds(world(1), rule, 1).deviation
    assert deviation < EXACT if rule.name == "match" else deviation > PLANTED


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_planted_the_seed_of_the_verify(monkeypatch: pytest.MonkeyPatch, rule: AcceptanceRule) -> None:
    """The number that chose y_0, known from the bonus, then decides what becomes of y_1."""
    monkeypatch.setattr(model_draft, "call_seed", seeds_of("target"))
    assert two_rounds(world(1), rule, 1).deviation > PLANTED


@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.name)
def test_planted_laws_of_the_places_before(monkeypatch: pytest.MonkeyPatch, rule: AcceptanceRule) -> None:
    """The law of y_0 is sent with y_1."""
    honest = model_draft.ModelSession._draft

    def shifted(self: model_draft.ModelSession, result: StepResult, first: int, k: int) -> Draft:
        draft = honest(self, result, first, k)
        laws = None if result.generation_logits is None else result.generation_logits[: len(draft.ids)]
        return Draft(draft.source, draft.ids, laws, draft.ahead)

    monkeypatch.setattr(model_draft.ModelSession, "_draft", shifted)
    assert two_rounds(world(1), rule, 1).deviation > PLANTED


@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.name)
def test_planted_a_choice_by_what_would_be_used(monkeypatch: pytest.MonkeyPatch, rule: AcceptanceRule) -> None:
    """Whether y_1 is used depends on y_1: what is used was not drawn from the law that is sent."""
    fits = AheadCall._fits
    monkeypatch.setattr(AheadCall, "_fits", lambda self, result: fits(self, result) and result.output_ids[1] != 0)
    assert two_rounds(world(1), rule, 1).deviation > PLANTED
