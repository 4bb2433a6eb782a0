"""Every rule commits the target's law, and each planted bug is seen by the check that a correct rule passes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pipeline.sampling.rules import (
    RULES,
    BlockRule,
    MatchRule,
    Proposal,
    Randomness,
    ResidualRule,
    TokenRule,
    Verdict,
)
from pipeline.sampling.vocabulary import draw

from .enumeration import (
    FAMILIES,
    World,
    make_world,
    own_draws_law,
    residual_rule_law,
    rows_of,
    sampled_distance,
)

EXACT = 1e-12
SIZES = [(3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3), (2, 4), (3, 4)]
MATCH_SIZES = [(3, 1), (3, 2), (3, 3), (4, 2), (2, 4)]
ROUNDS = 40_000


def enumerated_deviation(rule: ResidualRule, world: World, padding: int = 0) -> float:
    law, _ = residual_rule_law(rule, world, padding)
    return float((law - world.target_law()).abs().max())


@pytest.mark.parametrize("one_hot", [False, True], ids=["q", "one-hot"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("vocab", "drafts"), SIZES)
@pytest.mark.parametrize("rule", [TokenRule(), BlockRule()], ids=lambda rule: rule.name)
def test_residual_rules_commit_the_targets_law(
    rule: ResidualRule, vocab: int, drafts: int, family: str, one_hot: bool
) -> None:
    for seed in range(2):
        world = make_world(seed, vocab, drafts, family, one_hot)
        assert enumerated_deviation(rule, world, padding=seed) < EXACT


@pytest.mark.parametrize("one_hot", [False, True], ids=["q", "one-hot"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("vocab", "drafts"), MATCH_SIZES)
def test_match_commits_the_targets_law(vocab: int, drafts: int, family: str, one_hot: bool) -> None:
    world = make_world(7, vocab, drafts, family, one_hot)
    law = own_draws_law(MatchRule(), world, padding=1)
    assert float((law - world.target_law()).abs().max()) < EXACT


@pytest.mark.parametrize("one_hot", [False, True], ids=["q", "one-hot"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("vocab", "drafts"), SIZES)
def test_block_never_keeps_fewer_than_token(vocab: int, drafts: int, family: str, one_hot: bool) -> None:
    gains = []
    for seed in range(4):
        world = make_world(seed, vocab, drafts, family, one_hot)
        block, token = residual_rule_law(BlockRule(), world)[1], residual_rule_law(TokenRule(), world)[1]
        assert block >= token - EXACT
        gains.append(block - token)
    if drafts > 1 and family == "smooth" and not one_hot:
        assert max(gains) > 1e-3  # it is another rule, and better


def test_equal_laws_keep_every_draft() -> None:
    for rule in (TokenRule(), BlockRule()):
        _, p, proposal = rows_of(make_world(0, 3, 3, "same", False))
        assert bool((rule.acceptance_probabilities(p, proposal) == 1.0).all())


@pytest.mark.parametrize("one_hot", [False, True], ids=["q", "one-hot"])
@pytest.mark.parametrize("name", sorted(RULES))
def test_decide_follows_the_targets_law(name: str, one_hot: bool) -> None:
    """Whole rounds through `decide` with independent uniforms; false-alarm rate below 1e-9 (distance_bound)."""
    distance, bound = sampled_distance(RULES[name], make_world(3, 3, 2, "peaked", one_hot), ROUNDS, seed=11)
    assert distance < bound


# Planted bugs. Each makes one of the checks above fail.


@pytest.mark.parametrize("name", ["token", "block"])
def test_bug_draft_and_acceptance_share_a_uniform(name: str) -> None:
    """The check of test_decide_follows_the_targets_law: its false-alarm rate is below 1e-9."""
    world = make_world(3, 3, 2, "smooth", False)
    distance, bound = sampled_distance(RULES[name], world, ROUNDS, seed=11, shared_uniform=True)
    assert distance > bound
    distance, bound = sampled_distance(RULES[name], world, ROUNDS, seed=11)
    assert distance < bound


class RedrawingMatch(MatchRule):
    """Draws again from the whole law after a mismatch, as TensorRT-LLM does without draft_logits."""

    def decide(self, p: Tensor, proposal: Proposal, randomness: Randomness) -> Verdict:
        verdict = super().decide(p, proposal, randomness)
        rejected = verdict.accepted < proposal.lengths
        at = verdict.accepted.clamp(max=proposal.drafts.shape[1] - 1)
        again = draw(p[torch.arange(len(p)), verdict.accepted], randomness.accept.gather(1, at[:, None])[:, 0])
        return Verdict(verdict.accepted, torch.where(rejected, again, verdict.tokens))


def test_bug_match_draws_again_after_a_mismatch() -> None:
    """The check of test_decide_follows_the_targets_law: its false-alarm rate is below 1e-9."""
    world = make_world(5, 3, 1, "smooth", True)
    distance, bound = sampled_distance(RedrawingMatch(), world, ROUNDS, seed=1)
    assert distance > bound
    assert sampled_distance(MatchRule(), world, ROUNDS, seed=1)[0] < bound
    # The draft's token gets p (2 - p) instead of p, so the distance is p (1 - p), the bound of noise aside.
    p = float(world.p[0][0, world.q[0][0].argmax()])
    assert abs(distance - p * (1 - p)) < bound


class Unclipped(TokenRule):
    """Takes |p - q| for the residual, the part below 0 included."""

    def residual(self, p: Tensor, proposal: Proposal, accepted: Tensor) -> Tensor:
        assert proposal.q is not None
        law = p[torch.arange(len(p)), accepted].clone()
        rejected = accepted < proposal.lengths
        law[rejected] -= proposal.q[rejected, accepted[rejected]]
        return law.abs()


class BonusAfterRejection(TokenRule):
    """Draws from the whole law of the position, where a draft was rejected."""

    def residual(self, p: Tensor, proposal: Proposal, accepted: Tensor) -> Tensor:
        return p[torch.arange(len(p)), accepted]


class BonusOfTheLastPosition(TokenRule):
    """Draws from p of position K + 1 whatever was kept."""

    def residual(self, p: Tensor, proposal: Proposal, accepted: Tensor) -> Tensor:
        return p[torch.arange(len(p)), proposal.lengths]


class BlockWithoutWeight(BlockRule):
    """Takes the token rule's residual, max(p - q, 0), after a block was cut."""

    def residual(self, p: Tensor, proposal: Proposal, accepted: Tensor) -> Tensor:
        return TokenRule().residual(p, proposal, accepted)


class TokenAcceptsBlockwise(TokenRule):
    """Keeps up to the last draft that passed, with the token rule's probabilities."""

    def count(self, accepts: Tensor) -> Tensor:
        return BlockRule().count(accepts)


@pytest.mark.parametrize(
    "bug",
    [Unclipped(), BonusAfterRejection(), BonusOfTheLastPosition(), BlockWithoutWeight(), TokenAcceptsBlockwise()],
    ids=lambda bug: type(bug).__name__,
)
def test_bug_in_a_rule_is_seen_by_enumeration(bug: ResidualRule) -> None:
    worlds = [make_world(seed, 3, 2, "smooth", False) for seed in range(6)]
    assert max(enumerated_deviation(bug, world) for world in worlds) > 1e-3
    right = RULES[bug.name]
    assert isinstance(right, ResidualRule)
    assert max(enumerated_deviation(right, world) for world in worlds) < EXACT
