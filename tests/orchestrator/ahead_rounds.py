"""Two rounds with a draft made ahead between them, through the loop's own drafter and verifier, by enumeration.

Every random choice of both engines is gone through with its probability. A choice is made by a uniform number that
belongs to a seed, as in the engines: who asks for number i of a seed again learns no new number, only another function
of the old one. So seeds that two calls should not share show in the law of the text.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from sampling.enumeration import World, history_index
from torch import Tensor

from pipeline.drafting.base import Offer
from pipeline.drafting.model import DraftContext, ModelDrafter
from pipeline.engine.step import StepRequest, StepResult
from pipeline.orchestrator.verifier import StepVerifier, TargetContext
from pipeline.sampling.params import SamplingParams
from pipeline.sampling.rules import AcceptanceRule, Proposal, ResidualRule

from .scripted import ScriptedModel, make_manifest

PROMPT = (0,)
WARM = SamplingParams(1.0)
DUST = 1e-14


@dataclass
class Dice:
    """One way through the choices of a run, and how likely it is."""

    path: Sequence[int]
    taken: list[int] = field(default_factory=list)
    ways: list[int] = field(default_factory=list)
    mass: float = 1.0
    _known: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)  # where a uniform number lies

    def pick(self, seed: int, number: int, masses: Sequence[float]) -> int:
        """An index by uniform number `number` of a seed, in proportion to masses that sum to 1."""
        low, high = self._known.get((seed, number), (0.0, 1.0))
        edges = [0.0, *itertools.accumulate(masses)]
        parts = [(max(low, a), min(high, b)) for a, b in itertools.pairwise(edges)]
        possible = [i for i, (a, b) in enumerate(parts) if b - a > DUST]
        way = self.path[len(self.taken)] if len(self.taken) < len(self.path) else 0
        self.taken.append(way)
        self.ways.append(len(possible))
        part = parts[possible[way]]
        self.mass *= (part[1] - part[0]) / math.fsum(parts[i][1] - parts[i][0] for i in possible)
        self._known[seed, number] = part
        return possible[way]


def outcomes(run: Callable[[Dice], tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every way through a run."""
    path: list[int] | None = []
    while path is not None:
        dice = Dice(path)
        yield run(dice), dice.mass
        last = next((i for i in reversed(range(len(dice.taken))) if dice.taken[i] + 1 < dice.ways[i]), None)
        path = None if last is None else [*dice.taken[:last], dice.taken[last] + 1]


def drafting(world: World, dice: Dice) -> ScriptedModel:
    """The draft engine: one uniform number per token, and the laws that it drew from."""

    def answer(request: StepRequest) -> StepResult:
        text, laws = list(request.input_ids[len(PROMPT) :]), []
        for number in range(request.max_new_tokens):
            law = _law(world.q, text, world.vocab)
            laws.append(law)
            text.append(dice.pick(request.seed, number, law.tolist()))
        logits = torch.stack(laws).log().numpy() if request.return_logits else None
        return StepResult(tuple(text[-request.max_new_tokens :]), generation_logits=logits)

    return ScriptedModel(answer)


def verifying(world: World, rule: AcceptanceRule, dice: Dice) -> ScriptedModel:
    """The target engine: a uniform number per draft, then one for the correction or bonus."""

    def answer(request: StepRequest) -> StepResult:
        text, drafts = list(request.input_ids[len(PROMPT) :]), list(request.draft_ids)
        p = torch.stack([_law(world.p, [*text, *drafts[:i]], world.vocab) for i in range(len(drafts) + 1)])[None]
        if isinstance(rule, ResidualRule):
            assert request.draft_logits is not None
            q = torch.as_tensor(request.draft_logits, dtype=torch.float64).exp()[None]
            proposal = Proposal(torch.tensor([drafts]), torch.tensor([len(drafts)]), q)
            chances = rule.acceptance_probabilities(p, proposal)[0].tolist()
            kept = [dice.pick(request.seed, i, (h, 1 - h)) == 0 for i, h in enumerate(chances)]
            accepted = rule.count(torch.tensor([kept]))
            law = rule.residual(p, proposal, accepted)[0]
            token = dice.pick(request.seed, len(drafts), (law / law.sum()).tolist())
            return StepResult((*drafts[: int(accepted)], token), len(drafts))
        output: list[int] = []  # match: its own draws, for as long as the drafts agree with them
        for i in range(len(drafts) + 1):
            output.append(dice.pick(request.seed, i, p[0, i].tolist()))
            if output != drafts[: i + 1]:
                break
        return StepResult(tuple(output), len(drafts))

    return ScriptedModel(answer)


def _law(tables: list[Tensor], text: Sequence[int], vocab: int) -> Tensor:
    return tables[len(text)][int(history_index(torch.tensor([list(text)], dtype=torch.int64), vocab))]


@dataclass(frozen=True)
class TwoRounds:
    """What was found.

    Attributes:
        deviation: largest difference from the target's law of 2 (K + 1) tokens.
        used: probability that the second round took drafts made ahead.
    """

    deviation: float
    used: float


def two_rounds(world: World, rule: AcceptanceRule, k: int, ahead: bool = True) -> TwoRounds:
    """The law of what two rounds of k drafts commit, carried on by the target."""
    used = [0.0]

    def run(dice: Dice) -> tuple[int, ...]:
        drafter = ModelDrafter(drafting(world, dice), make_manifest(), 5.0)
        verifier = StepVerifier(verifying(world, rule, dice), 5.0)
        session = drafter.start(DraftContext("r", PROMPT, WARM, 1, rule.name))
        context = TargetContext("r", len(PROMPT), WARM, 1, None, rule.name)
        offer, text, taken = Offer("model", "model", k), list(PROMPT), False
        for index in (1, 2):
            draft = session.propose(offer, k, index)
            taken = draft.ahead
            if ahead and index == 1:
                assert session.look_ahead(draft, k, index + 1)
            verdict = verifier.verify(context, tuple(text), draft, index)
            text += verdict.tokens
            session.extend(verdict.tokens)
        used[0] += dice.mass * taken
        return tuple(text[len(PROMPT) :])

    whole = 2 * (k + 1)
    committed = [torch.zeros(world.vocab**depth, dtype=torch.float64) for depth in range(whole + 1)]
    for tokens, mass in outcomes(run):
        committed[len(tokens)][int(history_index(torch.tensor([tokens]), world.vocab))] += mass
    law = committed[0]
    for depth, p in enumerate(world.p):
        law = (law[:, None] * p).flatten() + committed[depth + 1]
    return TwoRounds(float((law - world.target_law()).abs().max()), used[0])
