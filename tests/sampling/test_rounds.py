"""Whole rounds with every option, enumerated: laws that depend on the history, and what the rules make of them.

The target's law is that of plain decoding: one position at a time, with the history up to it. The round sees
K + 1 positions at once, from the engine's side of the same function.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.sampling.call import VerifyCall
from pipeline.sampling.context import Context
from pipeline.sampling.laws import laws
from pipeline.sampling.params import SamplingParams
from pipeline.sampling.rules import BlockRule, MatchRule, ResidualRule, TokenRule
from pipeline.sampling.verify import sample, verify

from .enumeration import World, distance_bound, history_index, own_draws_law, residual_rule_law

EXACT = 1e-12
PROMPT = (0, 2, 2)
END = 1
RESIDUAL_RULES = [TokenRule(), BlockRule()]
OPTIONS = {
    "repetition": SamplingParams(0.8, repetition_penalty=1.7),
    "presence, frequency": SamplingParams(0.7, presence_penalty=0.9, frequency_penalty=0.4),
    "bad words": SamplingParams(1.3, bad_words=((2, 2, 0), (0, 1, 0), (1, 0, 1), (2, 2, 2, 2, 1))),
    "bias, top-k": SamplingParams(0.9, top_k=2, logit_bias=((2, 1.5), (0, -0.5), (2, -0.7))),
    "top-p, min-p": SamplingParams(1.1, top_p=0.9, min_p=0.3, frequency_penalty=1.0),
    "all": SamplingParams(0.8, 3, 0.95, 0.05, 1.3, 0.3, 0.2, ((1, 0.4),), ((0, 0), (1, 2))),
}


class Logits:
    """Random logits of target and draft after every history, in float64."""

    def __init__(self, seed: int, vocab: int, drafts: int, params: SamplingParams, min_tokens: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab, self.drafts, self.params, self.min_tokens = vocab, drafts, params, min_tokens
        sizes = [vocab**depth for depth in range(drafts + 1)]
        self.target = [torch.randn(n, vocab, generator=generator, dtype=torch.float64) * 2 for n in sizes]
        self.draft = [x + torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in self.target]

    def plain(self, tables: list[Tensor], end_id: int | None, params: SamplingParams | None = None) -> list[Tensor]:
        """Laws by history, each history a row of its own."""
        found = []
        for depth, logits in enumerate(tables):
            histories = list(itertools.product(range(self.vocab), repeat=depth))
            contexts = [Context(PROMPT + h, (), end_id, max(0, self.min_tokens - depth)) for h in histories]
            found.append(laws(logits[:, None], [params or self.params] * len(histories), contexts)[:, 0])
        return found

    def of_round(self, drafts: Tensor) -> Tensor:
        """The target's logits along each sequence of drafts: [rows, K + 1, vocab]."""
        depths = range(self.drafts + 1)
        return torch.stack([self.target[d][history_index(drafts[:, :d], self.vocab)] for d in depths], dim=1)

    def contexts(self, drafts: Tensor) -> list[Context]:
        return [Context(PROMPT, tuple(row), END, self.min_tokens) for row in drafts.tolist()]

    def world(self) -> World:
        p, q = self.plain(self.target, END), self.plain(self.draft[:-1], None)

        def round_p(drafts: Tensor) -> Tensor:
            return laws(self.of_round(drafts), [self.params] * len(drafts), self.contexts(drafts))

        return World(p, q, self.vocab, self.drafts, False, round_p)


def deviation(rule: ResidualRule, world: World) -> float:
    law, _ = residual_rule_law(rule, world)
    return float((law - world.target_law()).abs().max())


@pytest.mark.parametrize("min_tokens", [0, 2])
@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize(("vocab", "drafts"), [(3, 1), (3, 2), (4, 2), (3, 3), (3, 4)])
def test_rounds_with_options_commit_the_targets_law(vocab: int, drafts: int, name: str, min_tokens: int) -> None:
    for seed in range(2):
        world = Logits(seed, vocab, drafts, OPTIONS[name], min_tokens).world()
        for rule in RESIDUAL_RULES:
            assert deviation(rule, world) < EXACT
        law = own_draws_law(MatchRule(), world)
        assert float((law - world.target_law()).abs().max()) < EXACT


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_round_sees_the_laws_of_plain_decoding(name: str) -> None:
    """Position by position the same bits: nothing of a later draft or of a rejected one is seen."""
    logits = Logits(5, 3, 3, OPTIONS[name], 2)
    world = logits.world()
    drafts = torch.tensor(list(itertools.product(range(3), repeat=3)))
    assert world.round_p is not None
    together = world.round_p(drafts)
    for depth in range(4):
        assert torch.equal(together[:, depth], world.p[depth][history_index(drafts[:, :depth], 3)])


# Planted bugs: each is seen by the check above.


def raw_q(logits: Logits, world: World) -> World:
    """The draft sends the law before the options, and draws from the one after."""
    q = logits.plain(logits.draft[:-1], None, SamplingParams(1.0))

    def round_q(drafts: Tensor) -> Tensor:
        return torch.stack([q[d][history_index(drafts[:, :d], logits.vocab)] for d in range(logits.drafts)], dim=1)

    return dataclasses.replace(world, round_q=round_q)


def without_temperature(logits: Logits, world: World) -> World:
    params = dataclasses.replace(logits.params, temperature=1.0)

    def round_p(drafts: Tensor) -> Tensor:
        return laws(logits.of_round(drafts), [params] * len(drafts), logits.contexts(drafts))

    return dataclasses.replace(world, round_p=round_p)


def one_step_late(logits: Logits, world: World) -> World:
    """Position i sees one draft too few."""

    def round_p(drafts: Tensor) -> Tensor:
        whole = logits.of_round(drafts)
        parts = []
        for position in range(logits.drafts + 1):
            contexts = [
                dataclasses.replace(context, tokens=PROMPT + tuple(row[: max(0, position - 1)]), drafts=())
                for context, row in zip(logits.contexts(drafts), drafts.tolist(), strict=True)
            ]
            parts.append(laws(whole[:, position : position + 1], [logits.params] * len(drafts), contexts))
        return torch.cat(parts, dim=1)

    return dataclasses.replace(world, round_p=round_p)


def all_drafts_at_once(logits: Logits, world: World) -> World:
    """Every position sees every draft."""

    def round_p(drafts: Tensor) -> Tensor:
        whole = logits.of_round(drafts)
        contexts = [Context(PROMPT + tuple(row), (), END, logits.min_tokens) for row in drafts.tolist()]
        parts = [laws(whole[:, i : i + 1], [logits.params] * len(drafts), contexts) for i in range(whole.shape[1])]
        return torch.cat(parts, dim=1)

    return dataclasses.replace(world, round_p=round_p)


def end_withheld(logits: Logits, world: World) -> World:
    """The draft never proposes the end token, and sends the law that would."""
    q = world.q

    def round_q(drafts: Tensor) -> Tensor:
        return torch.stack([q[d][history_index(drafts[:, :d], logits.vocab)] for d in range(logits.drafts)], dim=1)

    held = [law.index_fill(1, torch.tensor([END]), 0.0) for law in q]
    return dataclasses.replace(world, q=[law / law.sum(-1, keepdim=True) for law in held], round_q=round_q)


@pytest.mark.parametrize("rule", RESIDUAL_RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("bug", [raw_q, without_temperature, one_step_late, all_drafts_at_once, end_withheld])
def test_a_planted_bug_is_seen(bug: object, rule: ResidualRule) -> None:
    for seed in range(3):
        logits = Logits(seed, 3, 3, OPTIONS["presence, frequency"], 0)
        world = logits.world()
        assert deviation(rule, world) < EXACT
        assert deviation(rule, bug(logits, world)) > 1e-3  # type: ignore[operator]


def test_min_tokens_counted_by_rounds_is_seen() -> None:
    """A limit that does not count the drafts before a position keeps the end token away for too long."""
    logits = Logits(0, 3, 2, SamplingParams(1.0), 1)
    late = Logits(0, 3, 2, SamplingParams(1.0), 3)
    world = logits.world()
    assert deviation(TokenRule(), world) < EXACT
    assert deviation(TokenRule(), dataclasses.replace(world, round_p=late.world().round_p)) > 1e-3


# Coupled: nothing to enumerate, its choice is plain sampling with fresh noise. Its text is a function of the seed.


def coupled_text(logits: Logits, seed: int, k: int, proposals: Sequence[int]) -> tuple[int, ...]:
    """The first K + 1 tokens of a request under "coupled", in rounds of k drafts."""
    text: list[int] = []
    while len(text) <= logits.drafts:
        width = min(k, logits.drafts - len(text))
        drafts = torch.tensor([[*text, *proposals[len(text) : len(text) + width]]], dtype=torch.int64)
        rows = [
            logits.target[d][history_index(drafts[:, :d], logits.vocab)] for d in range(len(text), drafts.shape[1] + 1)
        ]
        call = VerifyCall(
            drafts=tuple(drafts[0, len(text) :].tolist()),
            draft_logits=None,
            sampling=logits.params,
            rule="coupled",
            seed=seed,
            tokens=PROMPT + tuple(text),
            end_id=END,
            min_tokens=max(0, logits.min_tokens - len(text)),
        )
        (decision,) = verify(torch.stack(rows, dim=1), [call])
        text += [*call.drafts[: decision.accepted], decision.token]
    return tuple(text)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_coupled_text_depends_on_the_seed_alone(name: str) -> None:
    logits = Logits(3, 3, 4, OPTIONS[name], 1)
    random = np.random.default_rng(0)
    texts = set()
    for seed in range(10):
        plain = coupled_text(logits, seed, 0, ())
        for k in (1, 2, 3, 4):
            for proposals in (plain, random.integers(0, 3, 5).tolist()):
                assert coupled_text(logits, seed, k, proposals) == plain
        texts.add(plain)
    assert len(texts) > 1


@pytest.mark.parametrize("name", ["all", "bad words", "presence, frequency"])
def test_coupled_follows_the_targets_law(name: str) -> None:
    """20,000 seeds; false-alarm rate below 1e-9 (distance_bound)."""
    rounds, logits = 20_000, Logits(4, 3, 2, OPTIONS[name], 1)
    text = torch.zeros(rounds, 0, dtype=torch.int64)
    for depth in range(3):
        rows = logits.target[depth][history_index(text, 3)]
        calls = [
            VerifyCall((), None, logits.params, "coupled", seed, 0, (*PROMPT, *line), END, max(0, 1 - depth))
            for seed, line in enumerate(text.tolist())
        ]
        text = torch.cat([text, torch.tensor(sample(rows, calls))[:, None]], dim=1)
    law = torch.bincount(history_index(text, 3), minlength=27).double() / rounds
    distance = float((law - logits.world().target_law()).abs().sum() / 2)
    assert distance < distance_bound(27, rounds)
