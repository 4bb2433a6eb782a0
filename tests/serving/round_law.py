"""The law of one round by enumeration, and the law that it should have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from pipeline.drafting.base import Draft, DraftContext, Offer
from pipeline.drafting.model import ModelDrafter
from pipeline.orchestrator.verifier import StepVerifier, TargetContext
from pipeline.sampling.params import SamplingParams

from .nvidia_deployment import END, Setting, manifest
from .nvidia_engine import Engine

Law = dict[tuple[int, ...], float]
PROMPT = (0, 1, 2, 0, 3)
GENERATED = (1,)
NGRAM = (2, 0, END, 1)  # what a look-up proposes; the end token among it
DUST = 1e-13  # masses that are rounding


class PathDice:
    """Goes one way through the choices of a run, and knows how likely that way is."""

    def __init__(self, path: Sequence[int]) -> None:
        self._path = path
        self.taken: list[int] = []
        self.ways: list[int] = []
        self.mass = 1.0

    def pick(self, masses: Sequence[float]) -> int:
        possible = [index for index, mass in enumerate(masses) if mass > DUST]
        way = self._path[len(self.taken)] if len(self.taken) < len(self._path) else 0
        self.taken.append(way)
        self.ways.append(len(possible))
        self.mass *= float(masses[possible[way]]) / math.fsum(float(masses[index]) for index in possible)
        return possible[way]


def outcomes(run: Callable[[PathDice], tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every way through a run, with its probability."""
    path: list[int] = []
    while True:
        dice = PathDice(path)
        yield run(dice), dice.mass
        last = next((i for i in reversed(range(len(dice.taken))) if dice.taken[i] + 1 < dice.ways[i]), None)
        if last is None:
            return
        path = [*dice.taken[:last], dice.taken[last] + 1]


def one_round(setting: Setting, sampling: SamplingParams, min_tokens: int = 0) -> Law:
    """Probability of what one round commits behind PROMPT + GENERATED; END where it ended."""
    history = PROMPT + GENERATED

    def run(dice: PathDice) -> tuple[int, ...]:
        target, draft_model = setting.models(lambda seed: dice)
        if setting.kind == "ngram":
            draft = Draft("ngram", NGRAM[: setting.k])
        else:
            drafter = ModelDrafter(draft_model, manifest("draft", setting.draft), 5.0, greedy=setting.greedy_draft)
            session = drafter.start(DraftContext("r", PROMPT, sampling, 1, "token"))
            session.extend(GENERATED)
            draft = session.propose(Offer("model", "model", setting.k), setting.k, 1)
        context = TargetContext("r", len(PROMPT), sampling, 1, END, "token", min_tokens=min_tokens)
        verdict = StepVerifier(target, 5.0).verify(context, history, draft, 1)
        return (*verdict.tokens, END) if verdict.ended else verdict.tokens

    law: Law = {}
    for tokens, mass in outcomes(run):
        law[tokens] = law.get(tokens, 0.0) + mass
    return law


def continued(
    law: Law,
    engine: Engine,
    sampling: SamplingParams,
    min_tokens: int,
    length: int,
    generated: tuple[int, ...] = GENERATED,
) -> Law:
    """A law of what follows PROMPT + generated, whose texts go on under the target's law up to `length` or the end."""
    whole: Law = {}
    for tokens, mass in law.items():
        if len(tokens) >= length or tokens[-1:] == (END,):
            whole[tokens[:length]] = whole.get(tokens[:length], 0.0) + mass
            continue
        longer = {
            (*tokens, token): mass * p
            for token, p in next_law(engine, sampling, min_tokens, (*generated, *tokens)).items()
            if p > 0
        }
        for key, value in continued(longer, engine, sampling, min_tokens, length, generated).items():
            whole[key] = whole.get(key, 0.0) + value
    return whole


def next_law(engine: Engine, sampling: SamplingParams, min_tokens: int, generated: Sequence[int]) -> dict[int, float]:
    """The target's law as the options define it: penalties, bias, bad words, min_tokens, temperature, top-k, top-p."""
    history = [*PROMPT, *generated]
    x = [float(value) for value in engine.raw_logits(history)[: engine.vocab]]
    for token in set(history):
        x[token] = x[token] / sampling.repetition_penalty if x[token] > 0 else x[token] * sampling.repetition_penalty
        x[token] -= sampling.presence_penalty + sampling.frequency_penalty * history.count(token)
    for token, weight in sampling.logit_bias:
        x[token] += weight
    for *before, last in sampling.bad_words:
        if history[len(history) - len(before) :] == before:
            x[last] = -math.inf
    if len(generated) < min_tokens:
        x[END] = -math.inf
    order = sorted(range(len(x)), key=lambda token: -x[token])
    if sampling.greedy:
        return {order[0]: 1.0}
    order = order[: sampling.top_k or None]
    masses = [math.exp((x[token] - x[order[0]]) / sampling.temperature) for token in order]
    total, kept, reached = math.fsum(masses), [], 0.0
    for token, mass in zip(order, masses, strict=True):
        if reached >= sampling.top_p:
            break
        kept.append((token, mass))
        reached += mass / total
    whole = math.fsum(mass for _, mass in kept)
    return {token: mass / whole for token, mass in kept}


def distance(setting: Setting, sampling: SamplingParams, min_tokens: int = 0) -> float:
    """Total variation between what a round makes of the text and the target's own law, over K + 1 tokens."""
    length = setting.k + 1
    found = continued(one_round(setting, sampling, min_tokens), setting.target, sampling, min_tokens, length)
    right = continued({(): 1.0}, setting.target, sampling, min_tokens, length)
    return 0.5 * sum(abs(found.get(key, 0.0) - right.get(key, 0.0)) for key in found.keys() | right.keys())
