"""The law of sampled text under every option: chi-square against the law computed from its definition.

A small vocabulary, T = 0.9 and top-k 5 beside the option, K = 2: the first token is plain, the second and third are
verified drafts, corrections or bonuses; or all plain, without speculation. Seeds are fixed. Over seeds, one test would
raise a false alarm with probability below 1e-8: both statistics of a run are compared with a tail of 1e-10.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from chi_square import tail
from in_process_support import Setting, deploy, many_answers
from option_reference import Reference

from pipeline.drafting import model as model_draft
from pipeline.orchestrator import verifier
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams

TAIL = 1e-10
SAMPLES = 600
PROMPT = "cbgeamofklihdnj" * 2  # every letter occurs, so that look-up has an offer after each
SETTING = Setting(
    controller=(("kind", "fixed"), ("k", 2)),
    vocab=16,
    hidden=16,
    layers=1,
    seed=53,
    sharpness=0.4,
    noise=0.25,
    min_match=1,
)


def sampled(**options: Any) -> dict[str, Any]:
    return {"sampling": SamplingParams(temperature=0.9, top_k=5, **options)}


OPTION_SETS: dict[str, dict[str, Any]] = {
    "top_p": sampled(top_p=0.8),
    "min_p": sampled(min_p=0.25),
    "repetition": sampled(repetition_penalty=1.7),
    "presence": sampled(presence_penalty=0.9),
    "frequency": sampled(frequency_penalty=-0.5),
    "bias": {**sampled(), "embedding_bias": (("ad", 1.0), ("n", -1.5))},
    "bad words": {**sampled(), "bad_words": ("an", "na", "d", "od")},
    "min_tokens": {**sampled(), "min_tokens": 2, "embedding_bias": (("p", 1.0),)},
    "all": {
        **sampled(top_p=0.9, min_p=0.05, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.5),
        "embedding_bias": (("ad", 0.5), ("p", 1.0)),
        "bad_words": ("an", "od"),
        "min_tokens": 2,
    },
}


def request_of(options: dict[str, Any]) -> GenerationRequest:
    return GenerationRequest(PROMPT, 4, exclude_input_in_output=True, **options)


def smallest_tail(options: dict[str, Any], rule: str, kind: Any = "model", sampling: Any = "q", k: int = 2) -> float:
    """The smaller tail probability of the chi-squares over the first 2 and 3 tokens."""
    request = replace(request_of(options), acceptance_rule=rule, num_draft_tokens=k)
    with deploy(SETTING.replace(kind=kind, draft_sampling=sampling)) as deployment:
        found = many_answers(deployment, request, SAMPLES, SETTING.vocab - 1)
    reference = Reference(SETTING, request)
    return min(tail(found, reference.answers(length), length) for length in (2, 3))


@pytest.mark.parametrize("name", OPTION_SETS)
def test_each_option_is_worth_testing(name: str) -> None:
    """It moves the law of three tokens by more than a tenth in total variation."""
    plain = Reference(SETTING, request_of(sampled())).answers(3)
    moved = Reference(SETTING, request_of(OPTION_SETS[name])).answers(3)
    assert sum(moved.values()) == pytest.approx(1.0)
    assert sum(abs(moved.get(ids, 0.0) - plain.get(ids, 0.0)) for ids in {*plain, *moved}) / 2 > 0.1
    assert sum(mass * SAMPLES >= 8 for mass in moved.values()) >= 10


@pytest.mark.parametrize(
    ("name", "rule"),
    list(
        zip(
            OPTION_SETS,
            ["block", "token", "coupled", "block", "match", "token", "block", "coupled", "block"],
            strict=True,
        )
    ),
)
def test_the_law_with_speculation(name: str, rule: str) -> None:
    assert smallest_tail(OPTION_SETS[name], rule) > TAIL


@pytest.mark.parametrize(
    ("name", "rule", "kind", "sampling"),
    [
        ("all", "token", "model", "q"),
        ("all", "match", "ngram", "q"),
        ("all", "coupled", "hybrid", "q"),
        ("frequency", "token", "model", "greedy"),
        ("frequency", "block", "hybrid", "greedy"),
        ("frequency", "match", "model", "greedy"),
        ("frequency", "coupled", "model", "greedy"),
    ],
)
def test_every_rule_and_draft(name: str, rule: str, kind: str, sampling: str) -> None:
    assert smallest_tail(OPTION_SETS[name], rule, kind, sampling) > TAIL


@pytest.mark.parametrize("name", OPTION_SETS)
def test_the_law_without_speculation(name: str) -> None:
    assert smallest_tail(OPTION_SETS[name], "block", k=0) > TAIL


def test_bugs_of_this_layer_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same check refuses a q that is not what was drawn from, and min_tokens that counts rounds."""
    options = OPTION_SETS["all"]
    with monkeypatch.context() as patch:
        patch.setattr(model_draft, "log_q", lambda logits, *_: 0.3 * logits)
        assert smallest_tail(options, "token") < TAIL / 1000
    with monkeypatch.context() as patch:
        original = verifier.StepRequest

        def by_round(**fields: Any) -> Any:
            index = int(fields["request_id"].rpartition("/")[2])
            return original(**{**fields, "min_tokens": max(0, 2 - index - 1) if index else 0})

        patch.setattr(verifier, "StepRequest", by_round)
        assert smallest_tail(OPTION_SETS["min_tokens"], "block") < TAIL / 1000


def test_a_false_alarm_is_as_rare_as_stated() -> None:
    """The tail of the check is what it says, on samples from the law itself: the smallest of 200 is about 1/200."""
    law = Reference(SETTING, request_of(OPTION_SETS["all"])).answers(3)
    texts, masses = list(law), torch.tensor(list(law.values()), dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    tails = []
    for _ in range(200):
        drawn = torch.multinomial(masses, SAMPLES, replacement=True, generator=generator)
        tails.append(tail([texts[i] for i in drawn.tolist()], law, 3))
    assert 1e-5 < min(tails) < 0.05 and math.isclose(sum(tails) / 200, 0.5, abs_tol=0.1)
