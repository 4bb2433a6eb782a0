"""Exact and sampled laws of what one round commits, computed through the rules' own code.

A world is a target and a draft over a tiny vocabulary whose laws depend on the whole history.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.sampling.noise import choose, noise_keys
from pipeline.sampling.rules import AcceptanceRule, Proposal, Randomness, ResidualRule
from pipeline.sampling.vocabulary import draw

FALSE_ALARM = 1e-9
FAMILIES = ("smooth", "sparse", "same", "disjoint", "peaked")


@dataclass(frozen=True)
class World:
    """Laws by history: p[d] and q[d] are [vocab**d, vocab] float64, the history read as a number in base vocab.

    Attributes:
        round_p: p [rows, K + 1, vocab] of a round, given its drafts [rows, K]; None takes it from the tables.
        round_q: the q that is sent along [rows, K, vocab], given the drafts; None takes it from the tables.
    """

    p: list[Tensor]
    q: list[Tensor]
    vocab: int
    drafts: int
    one_hot: bool
    round_p: Callable[[Tensor], Tensor] | None = None
    round_q: Callable[[Tensor], Tensor] | None = None

    def target_law(self) -> Tensor:
        """[vocab ** (K + 1)]: the law of the first K + 1 tokens of plain decoding."""
        law = torch.ones(1, dtype=torch.float64)
        for p in self.p:
            law = (law[:, None] * p).flatten()
        return law


def make_world(seed: int, vocab: int, drafts: int, family: str, one_hot: bool) -> World:
    """A world with K = drafts; one_hot makes the draft propose one certain token after each history."""
    generator = torch.Generator().manual_seed(seed)

    def table(depth: int) -> Tensor:
        x = torch.rand(vocab**depth, vocab, generator=generator, dtype=torch.float64) + 1e-3
        if family == "peaked":
            x = x**8 + 1e-9
        if family == "sparse":
            x = x * (torch.rand(x.shape, generator=generator) < 0.6)
            x[:, 0] += x.sum(-1) == 0
        return x / x.sum(-1, keepdim=True)

    p = [table(depth) for depth in range(drafts + 1)]
    q = [table(depth) for depth in range(drafts)]
    if family == "same":
        q = [law.clone() for law in p[:drafts]]
    if family == "disjoint":
        half = torch.arange(vocab) < vocab // 2
        p = [(law * half) / (law * half).sum(-1, keepdim=True) for law in p]
        q = [(law * ~half) / (law * ~half).sum(-1, keepdim=True) for law in q]
    if one_hot:
        q = [torch.nn.functional.one_hot(law.argmax(-1), vocab).double() for law in q]
    return World(p, q, vocab, drafts, one_hot)


def rows_of(world: World, padding: int = 0) -> tuple[Tensor, Tensor, Proposal]:
    """Every draft sequence that can happen as one row.

    Args:
        world: with K drafts.
        padding: columns beyond K, filled with NaN, that no rule may look at.

    Returns:
        Probability [rows] of each sequence, p [rows, K + 1 + padding, vocab], and the proposal.
    """
    vocab, width = world.vocab, world.drafts
    drafts = torch.tensor(list(itertools.product(range(vocab), repeat=width)))
    histories = [history_index(drafts[:, :depth], vocab) for depth in range(width + 1)]
    p = torch.stack([law[index] for law, index in zip(world.p, histories, strict=True)], dim=1)
    q = torch.stack([law[index] for law, index in zip(world.q, histories[:width], strict=True)], dim=1)
    weight = q.gather(2, drafts[:, :, None])[:, :, 0].prod(-1)
    p = p if world.round_p is None else world.round_p(drafts)
    q = q if world.round_q is None else world.round_q(drafts)
    possible = weight > 0
    weight, p, q, drafts = weight[possible], p[possible], q[possible], drafts[possible]
    rows = len(weight)
    p = torch.cat([p, torch.full((rows, padding, vocab), torch.nan, dtype=torch.float64)], dim=1)
    q = torch.cat([q, torch.full((rows, padding, vocab), torch.nan, dtype=torch.float64)], dim=1)
    drafts = torch.cat([drafts, torch.zeros(rows, padding, dtype=torch.int64)], dim=1)
    lengths = torch.full((rows,), width)
    return weight, p, Proposal(drafts, lengths, None if world.one_hot else q)


def history_index(tokens: Tensor, vocab: int) -> Tensor:
    """[rows, depth] tokens -> [rows] row of a table of that depth."""
    index = torch.zeros(tokens.shape[0], dtype=torch.int64)
    for position in range(tokens.shape[1]):
        index = index * vocab + tokens[:, position]
    return index


def continued(committed: list[Tensor], world: World) -> Tensor:
    """Probability of what one round committed, by depth, carried on by the target to K + 1 tokens."""
    law = committed[0]
    for depth, p in enumerate(world.p):
        law = (law[:, None] * p).flatten() + committed[depth + 1]
    return law


def empty_committed(world: World) -> list[Tensor]:
    return [torch.zeros(world.vocab**depth, dtype=torch.float64) for depth in range(world.drafts + 2)]


def residual_rule_law(rule: ResidualRule, world: World, padding: int = 0) -> tuple[Tensor, float]:
    """Law [vocab ** (K + 1)] of the first K + 1 tokens under the rule, and the expected number of drafts kept."""
    weight, p, proposal = rows_of(world, padding)
    h = rule.acceptance_probabilities(p, proposal)
    committed, kept = empty_committed(world), 0.0
    for pattern in itertools.product((False, True), repeat=world.drafts):
        accepts = torch.tensor([*pattern, *[False] * padding]).expand(len(weight), -1)
        chance = weight * torch.where(accepts, h, 1.0 - h).prod(-1)
        accepted = rule.count(accepts)
        law = rule.residual(p, proposal, accepted)
        law = law / law.sum(-1, keepdim=True) * chance[:, None]
        kept += float((chance * accepted).sum())
        # One pattern keeps the same number of drafts in every row.
        depth = int(accepted[0])
        start = history_index(proposal.drafts[:, :depth], world.vocab) * world.vocab
        index = start[:, None] + torch.arange(world.vocab)
        committed[depth + 1].index_add_(0, index.flatten(), law.flatten())
    return continued(committed, world), kept


def own_draws_law(rule: AcceptanceRule, world: World, padding: int = 0) -> Tensor:
    """Law [vocab ** (K + 1)] under a rule that looks at the target's own draws alone, through `decide`.

    Every combination of own draws is reached by the uniforms in the middle of their parts of the cumulative law.
    """
    weight, p, proposal = rows_of(world, padding)
    rows, positions = len(weight), world.drafts + 1
    middle = p.cumsum(-1) - p / 2
    committed = empty_committed(world)
    for own in itertools.product(range(world.vocab), repeat=positions):
        tokens = torch.tensor([*own, *[0] * padding]).expand(rows, -1)
        final = middle.gather(2, tokens[:, :, None])[:, :, 0]
        chance = weight * p.gather(2, tokens[:, :, None])[:, :positions, 0].prod(-1)
        accept = torch.full((rows, world.drafts + padding), torch.nan, dtype=torch.float64)
        verdict = rule.decide(p, proposal, Randomness(accept, final))
        for depth in range(positions):
            here = verdict.accepted == depth
            start = history_index(proposal.drafts[here, :depth], world.vocab) * world.vocab
            committed[depth + 1].index_add_(0, start + verdict.tokens[here], chance[here])
    return continued(committed, world)


def distance_bound(cells: int, rounds: int) -> float:
    """Total variation that an empirical law of `rounds` samples exceeds with probability below FALSE_ALARM.

    P(TV >= e) <= 2**cells exp(-2 rounds e**2) (union of Hoeffding bounds over all sets of cells).
    """
    return math.sqrt((cells * math.log(2) - math.log(FALSE_ALARM)) / (2 * rounds))


def sampled_distance(
    rule: AcceptanceRule, world: World, rounds: int, seed: int, shared_uniform: bool = False
) -> tuple[float, float]:
    """Monte Carlo of whole rounds through `decide`.

    Args:
        rule: under test.
        world: targets and drafts.
        rounds: how many.
        seed: of the simulation.
        shared_uniform: plant a bug: judge each draft by the uniform that drew it.

    Returns:
        Total variation between the first K + 1 tokens and the target's law, and its bound.
    """
    generator = torch.Generator().manual_seed(seed)
    width, vocab = world.drafts, world.vocab

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    noise = torch.from_numpy(noise_keys(range(seed, seed + rounds), np.arange(width + 1)[None]))
    drafting, accept, final = uniform(rounds, width), uniform(rounds, width), uniform(rounds, width + 1)
    text = torch.zeros(rounds, 0, dtype=torch.int64)
    ps, qs = [world.p[0].expand(rounds, -1)], []
    for depth in range(width):
        q = world.q[depth][history_index(text, vocab)]
        proposed = choose(q, noise[:, depth]) if rule.name == "coupled" else draw(q, drafting[:, depth])
        text = torch.cat([text, proposed[:, None]], dim=1)
        qs.append(q)
        ps.append(world.p[depth + 1][history_index(text, vocab)])
    q_all = None if world.one_hot else torch.stack(qs, dim=1)
    proposal = Proposal(text, torch.full((rounds,), width), q_all)
    randomness = Randomness(drafting if shared_uniform else accept, final, noise)
    verdict = rule.decide(torch.stack(ps, dim=1), proposal, randomness)
    out = torch.cat([text, text[:, :1]], dim=1)
    for depth in range(width + 1):
        own = draw(world.p[depth][history_index(out[:, :depth], vocab)], uniform(rounds))
        own = torch.where(verdict.accepted == depth, verdict.tokens, own)
        out[:, depth] = torch.where(verdict.accepted > depth, out[:, depth], own)
    cells = vocab ** (width + 1)
    law = torch.bincount(history_index(out, vocab), minlength=cells).double() / rounds
    return float((law - world.target_law()).abs().sum() / 2), distance_bound(cells, rounds)
