"""Sampled text of the whole pipeline follows the target's law: chi-square against the law from the target's logits.

A small vocabulary, T = 0.8 with top-k and top-p, K = 2: the first token is plain, the second and third are
verified drafts, corrections or bonuses. Seeds are fixed. Over seeds, one test would raise a false alarm with
probability below 1e-8: both statistics of a run are compared with a tail of 1e-10, and cells with fewer than 8
expected are pooled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest
import torch
from chi_square import Ids, tail
from in_process_support import LetterTokenizer, Setting, deploy, make_config, many_answers, random_weights
from torch import Tensor

from pipeline.drafting import model as model_draft
from pipeline.engine import scheduler
from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.call import Call
from pipeline.engine.compiled.decoder import CompiledDecoder
from pipeline.kv_cache.page_table import PageTable
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.sampling.random import call_seed, uniforms
from pipeline.sampling.rules import RULES, MatchRule, Proposal, Randomness, Verdict
from pipeline.sampling.vocabulary import draw

VOCAB = 16
END = VOCAB - 1
T, TOP_K, TOP_P = 0.8, 6, 0.95
TAIL = 1e-10
SAMPLES = 700
PROMPT = "cbgeamofklihdnj" * 2  # every letter occurs, so that look-up has an offer after each
SETTING = Setting(
    controller=(("kind", "fixed"), ("k", 2)),
    vocab=VOCAB,
    hidden=16,
    layers=1,
    seed=53,
    sharpness=0.4,
    noise=0.25,
    min_match=1,
)

original_sample = scheduler.sample_with_law


@lru_cache
def exact_law(length: int) -> dict[Ids, float]:
    """Probability of each beginning of the answer, of `length` tokens or ended by the end token."""
    config = make_config(VOCAB, SETTING.hidden, SETTING.layers)
    weights = random_weights(config, SETTING.seed, SETTING.sharpness)
    decoder = CompiledDecoder(config, weights, "float32", 64, 16, 4)
    prompt = tuple(LetterTokenizer(VOCAB).encode(PROMPT))
    law: dict[Ids, float] = {(): 1.0}
    for _ in range(length):
        longer: dict[Ids, float] = {}
        for ids, mass in law.items():
            if ids and ids[-1] == END:
                longer[ids] = mass
                continue
            row = Row(prompt + ids, 0, PageTable(4, list(range(16))), 1)
            for token, p in next_token(decoder.forward(PackedBatch((row,)))[0]).items():
                longer[(*ids, token)] = mass * p
        law = longer
    return law


def next_token(logits: Tensor) -> dict[int, float]:
    """Temperature, top-k, top-p by their definitions, with plain numbers."""
    scaled = [math.exp(x / T) for x in logits.double().tolist()]
    order = sorted(range(VOCAB), key=lambda token: -scaled[token])[:TOP_K]
    total = sum(scaled[token] for token in order)
    kept: dict[int, float] = {}
    for token in order:
        if sum(kept.values()) >= TOP_P:
            break
        kept[token] = scaled[token] / total
    whole = sum(kept.values())
    return {token: p / whole for token, p in kept.items()}


def smallest_tail(kind: Any, rule: str) -> float:
    with deploy(SETTING.replace(kind=kind)) as deployment:
        request = GenerationRequest(
            PROMPT, 4, SamplingParams(T, TOP_K, TOP_P), acceptance_rule=rule, exclude_input_in_output=True
        )
        found = many_answers(deployment, request, SAMPLES, END)
    return min(tail(found, exact_law(length), length) for length in (2, 3))


def test_the_law_is_worth_testing() -> None:
    """Several tokens, the end token among them, and a law that sums to 1."""
    law = exact_law(2)
    assert sum(law.values()) == pytest.approx(1.0)
    assert sum(mass for ids, mass in law.items() if ids[-1] == END) > 0.15
    assert sum(mass * SAMPLES >= 8 for mass in law.values()) >= 15


@pytest.mark.parametrize("kind", ["model", "ngram"])
@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_the_law_of_the_text(rule: str, kind: str) -> None:
    """Every rule, with a draft model's law q and with one-hot look-up."""
    assert smallest_tail(kind, rule) > TAIL


def withheld_end(logits: Tensor, calls: Sequence[Any], head: Any = None) -> tuple[list[int], Tensor]:
    """A draft that never proposes the end token, and reports the law that does."""
    _, law = original_sample(logits, calls, head)
    masked = law.clone()
    masked[:, END] = 0.0
    u = torch.tensor([uniforms(call.seed, call.start, 1)[0] for call in calls], dtype=torch.float64)
    return draw(masked, u).tolist(), law


def uncut(self: Call, tokens: list[int]) -> bool:
    """An engine that goes on behind the end token."""
    self.output += tokens
    self.known += tokens
    return bool(self.drafts) or len(self.output) >= self.request.max_new_tokens


class RedrawRule(MatchRule):
    """After a mismatch the target draws again from its whole law, as TensorRT-LLM's token match does."""

    def decide(self, p: Tensor, proposal: Proposal, randomness: Randomness) -> Verdict:
        verdict = super().decide(p, proposal, randomness)
        rows = torch.arange(len(p))
        rejected = verdict.accepted < proposal.lengths
        at = verdict.accepted.clamp(max=randomness.accept.shape[1] - 1)
        again = draw(p[rows, verdict.accepted], randomness.accept[rows, at])
        return Verdict(verdict.accepted, torch.where(rejected, again, verdict.tokens))


@contextmanager
def planted(name: str, patch: pytest.MonkeyPatch) -> Iterator[None]:
    if name == "end token withheld":
        patch.setattr(scheduler, "sample_with_law", withheld_end)
    elif name == "one seed for both":
        patch.setattr(model_draft, "call_seed", lambda seed, index, role: call_seed(seed, index, "target"))
    elif name == "end token not cut":
        patch.setattr(Call, "commit", uncut)
    elif name == "redraw":
        patch.setitem(RULES, "match", RedrawRule())
    yield
    patch.undo()


@pytest.mark.parametrize(
    ("name", "kind", "rule"),
    [
        ("end token withheld", "model", "block"),
        ("one seed for both", "model", "token"),
        ("end token not cut", "model", "token"),
        ("redraw", "ngram", "match"),
    ],
)
def test_a_planted_bug_is_seen(name: str, kind: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check as above refuses what these bugs make of the law, far beyond its threshold."""
    with planted(name, monkeypatch):
        assert smallest_tail(kind, rule) < TAIL / 1000
