"""The vectorised rules against their definitions written out with plain numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from pipeline.errors import InvalidRequestError
from pipeline.sampling.noise import exponentials, noise_keys
from pipeline.sampling.rules import RULES, Proposal, Randomness, compare, resolve_rule

Law = list[float]


def residual_of(p: Law, q: Law, w: float) -> Law:
    left = [max(w * a - b, 0.0) for a, b in zip(p, q, strict=True)]
    return left if sum(left) > 0 else p


def invert(law: Law, u: float) -> int:
    total, reached = sum(law), 0.0
    for token, mass in enumerate(law):
        reached += mass
        if mass > 0 and reached > u * total:
            return token
    return max(token for token, mass in enumerate(law) if mass > 0)


def token_by_hand(p: list[Law], q: list[Law], x: list[int], u: Law, final: Law) -> tuple[int, int]:
    for i, token in enumerate(x):
        if not u[i] < min(1.0, p[i][token] / q[i][token]):
            return i, invert(residual_of(p[i], q[i], 1.0), final[i])
    return len(x), invert(p[len(x)], final[len(x)])


def block_by_hand(p: list[Law], q: list[Law], x: list[int], u: Law, final: Law) -> tuple[int, int]:
    count, w, kept = len(x), [1.0], 0
    for i, token in enumerate(x):
        w.append(min(w[-1] * p[i][token] / q[i][token], 1.0))
    for i in range(1, count + 1):
        h = w[i]
        if i < count:
            s = sum(max(w[i] * a - b, 0.0) for a, b in zip(p[i], q[i], strict=True))
            h = 1.0 if s + 1.0 - w[i] == 0 else s / (s + 1.0 - w[i])
        if u[i - 1] < h:
            kept = i
    law = p[count] if kept == count else residual_of(p[kept], q[kept], w[kept])
    return kept, invert(law, final[kept])


def match_by_hand(p: list[Law], q: list[Law], x: list[int], u: Law, final: Law) -> tuple[int, int]:
    for i, token in enumerate(x):
        own = invert(p[i], final[i])
        if own != token:
            return i, own
    return len(x), invert(p[len(x)], final[len(x)])


def coupled_by_hand(p: list[Law], q: list[Law], x: list[int], u: Law, noise: list[int]) -> tuple[int, int]:
    for i in range(len(x) + 1):
        scores = exponentials(noise[i], np.arange(len(p[i]))).tolist()
        own = min((token for token, mass in enumerate(p[i]) if mass > 0), key=lambda v: scores[v] / p[i][v])
        if i == len(x) or own != x[i]:
            return i, own
    raise AssertionError


BY_HAND = {"token": token_by_hand, "block": block_by_hand, "match": match_by_hand, "coupled": coupled_by_hand}


def random_rows(seed: int, rows: int, width: int, vocab: int) -> tuple[Tensor, Proposal, Randomness]:
    """Ragged rows, with zeros in the laws and NaN in the padding."""
    generator = torch.Generator().manual_seed(seed)

    def law(*shape: int) -> Tensor:
        x = torch.rand(*shape, vocab, generator=generator, dtype=torch.float64)
        x = x * (torch.rand(x.shape, generator=generator) < 0.8)
        x[..., 0] += 0.05
        return x / x.sum(-1, keepdim=True)

    p, q = law(rows, width + 1), law(rows, width)
    drafts = torch.multinomial(q.view(-1, vocab), 1, generator=generator).view(rows, width)
    lengths = torch.randint(0, width + 1, (rows,), generator=generator)
    p[torch.arange(width + 1) > lengths[:, None]] = torch.nan
    q[torch.arange(width) >= lengths[:, None]] = torch.nan
    accept = torch.rand(rows, width, generator=generator, dtype=torch.float64)
    final = torch.rand(rows, width + 1, generator=generator, dtype=torch.float64)
    noise = torch.from_numpy(noise_keys(range(rows), np.arange(width + 1)[None]))
    return p, Proposal(drafts, lengths, q), Randomness(accept, final, noise)


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("one_hot", [False, True], ids=["q", "one-hot"])
def test_decide_equals_the_definition(name: str, one_hot: bool) -> None:
    p, proposal, randomness = random_rows(1, 1500, 4, 3)
    q, noise = proposal.q, randomness.noise
    assert q is not None and noise is not None
    if one_hot:
        q = torch.nn.functional.one_hot(proposal.drafts, 3).double()
        proposal = dataclasses.replace(proposal, q=None)
    verdict = RULES[name].decide(p, proposal, randomness)
    kept = set()
    for row in range(len(p)):
        count = int(proposal.lengths[row])
        expected = BY_HAND[name](
            p[row].tolist(),
            q[row].tolist(),
            proposal.drafts[row, :count].tolist(),
            randomness.accept[row].tolist(),
            noise[row].tolist() if name == "coupled" else randomness.final[row].tolist(),
        )
        assert (int(verdict.accepted[row]), int(verdict.tokens[row])) == expected
        kept.add((count, expected[0]))
    assert len(kept) == 15  # every length 0 .. 4 with every number kept


@pytest.mark.parametrize("name", ["token", "block"])
def test_one_hot_need_not_be_written_out(name: str) -> None:
    p, proposal, randomness = random_rows(2, 500, 4, 5)
    short = dataclasses.replace(proposal, q=None)
    full = dataclasses.replace(proposal, q=torch.nn.functional.one_hot(proposal.drafts, 5).double())
    ours, theirs = (RULES[name].decide(p, given, randomness) for given in (short, full))
    assert torch.equal(ours.accepted, theirs.accepted)
    assert torch.equal(ours.tokens, theirs.tokens)


@pytest.mark.parametrize("name", ["block", "match", "token"])
def test_no_drafts_is_plain_decoding(name: str) -> None:
    p, proposal, randomness = random_rows(3, 50, 0, 5)
    verdict = RULES[name].decide(p, proposal, randomness)
    assert verdict.accepted.tolist() == [0] * 50
    assert verdict.tokens.tolist() == [
        invert(law[0], u[0]) for law, u in zip(p.tolist(), randomness.final.tolist(), strict=True)
    ]


@pytest.mark.parametrize("name", ["token", "block"])
def test_acceptance_is_strict(name: str) -> None:
    """h = 0 is never accepted, not even by u = 0; h = 1 always, even by the largest u."""
    p = torch.tensor([[[0.0, 1.0], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]], dtype=torch.float64)
    q = torch.full((2, 1, 2), 0.5, dtype=torch.float64)
    proposal = Proposal(torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, dtype=torch.int64), q)
    u = torch.tensor([[0.0], [1 - 2.0**-53]], dtype=torch.float64)
    verdict = RULES[name].decide(p, proposal, Randomness(u, torch.zeros(2, 2, dtype=torch.float64)))
    assert verdict.accepted.tolist() == [0, 1]
    assert verdict.tokens.tolist() == [1, 0]


@pytest.mark.parametrize("name", ["token", "block"])
def test_a_token_of_probability_zero_is_not_kept(name: str) -> None:
    """Where p(x) and q(x) are both 0 (a draft that could not have been drawn), p decides."""
    p = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    proposal = Proposal(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64), p[:, :1])
    verdict = RULES[name].decide(p, proposal, Randomness(torch.zeros(1, 1), torch.zeros(1, 2)))
    assert (verdict.accepted.tolist(), verdict.tokens.tolist()) == ([0], [1])


def test_compare_stops_at_the_first_difference() -> None:
    own = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [9, 2, 3, 4], [1, 9, 3, 4]])
    proposal = Proposal(torch.tensor([[1, 2, 3]] * 4), torch.tensor([3, 1, 3, 3]))
    verdict = compare(own, proposal)
    assert verdict.accepted.tolist() == [3, 1, 0, 1]
    assert verdict.tokens.tolist() == [4, 2, 9, 9]


def test_auto_takes_the_best_that_is_offered() -> None:
    assert resolve_rule("auto", ["match", "token", "block"]) == "block"
    assert resolve_rule("auto", ["match", "token"]) == "token"
    assert resolve_rule("auto", ["match"]) == "match"
    assert resolve_rule("match", ["match", "token"]) == "match"
    assert resolve_rule("auto", ["coupled", "match"]) == "match"


def test_a_seed_asks_for_the_same_text_again() -> None:
    assert resolve_rule("auto", ["block", "coupled"], seeded=True) == "coupled"
    assert resolve_rule("auto", ["block", "token"], seeded=True) == "block"
    assert resolve_rule("token", ["token", "coupled"], seeded=True) == "token"


@pytest.mark.parametrize(
    ("requested", "offered"), [("block", ["token", "match"]), ("typical", ["token"]), ("auto", []), ("", ["token"])]
)
def test_a_rule_that_is_not_offered_is_refused(requested: str, offered: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        resolve_rule(requested, offered)
    assert refusal.value.field == "acceptance_rule"
    assert refusal.value.value == requested
    assert all(name in str(refusal.value) for name in offered)


def test_float32_laws_agree_with_float64() -> None:
    """Verdicts differ only where a uniform falls within float32 rounding of a threshold."""
    p, proposal, randomness = random_rows(4, 2000, 4, 6)
    assert proposal.q is not None
    for name in ("token", "block"):
        double = RULES[name].decide(p, proposal, randomness)
        single = RULES[name].decide(p.float(), dataclasses.replace(proposal, q=proposal.q.float()), randomness)
        assert int((double.accepted != single.accepted).sum()) <= 2
        assert int((double.tokens != single.tokens).sum()) <= 2
