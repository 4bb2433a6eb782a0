"""The text that comes through NVIDIA's interface follows the target's law: by enumeration of every random choice.

A round runs through the drafter, the verifier, the adapter, and the stand-in's tensors, once for every way that the
dice of both engines can fall. What is committed, continued under the target's law, is that law. Tensors are float32
and NVIDIA adds 1e-6 to the temperature: hence the tolerance. The planted bugs at the end are 100 times beyond it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.drafting import model as model_draft
from pipeline.orchestrator import verifier
from pipeline.sampling.params import SamplingParams
from pipeline.serving import adapter
from pipeline.serving.dialect import Dialect

from .nvidia_deployment import DRAFT, END, TARGET, Setting, manifest, other
from .round_law import NGRAM, distance, one_round

TOLERANCE = 1e-5
PLANTED = 1e-3
WARM = SamplingParams(0.8)
TRUNCATED = SamplingParams(1.0, 3, 0.85)
PENALISED = SamplingParams(0.8, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=-0.3)
BIASED = SamplingParams(0.8, presence_penalty=0.4, logit_bias=((0, 1.0), (END, 0.7)), bad_words=((0, 2), (3,)))
ENDING = SamplingParams(1.3, logit_bias=((END, 1.5),))
OPTION_SETS: dict[str, tuple[SamplingParams, int]] = {
    "greedy": (SamplingParams(presence_penalty=0.6), 0),
    "T=0.8": (WARM, 0),
    "T=1, top-k, top-p": (TRUNCATED, 0),
    "penalties": (PENALISED, 0),
    "bias, bad words": (BIASED, 0),
    "min_tokens": (ENDING, 3),
}
MODEL = Setting()
GREEDY_DRAFT = Setting(greedy_draft=True)
LOOK_UP = Setting(kind="ngram")
DRAFTS = {"model": MODEL, "greedy draft": GREEDY_DRAFT, "ngram": LOOK_UP}


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("options", OPTION_SETS)
def test_a_round_has_the_targets_law(options: str, draft: str, k: int) -> None:
    assert distance(replace(DRAFTS[draft], k=k), *OPTION_SETS[options]) < TOLERANCE


@pytest.mark.parametrize("draft", ["greedy draft", "ngram"])
def test_four_drafts(draft: str) -> None:
    assert distance(replace(DRAFTS[draft], k=4), *OPTION_SETS["bias, bad words"]) < TOLERANCE


def test_four_drafts_of_a_narrow_law() -> None:
    assert distance(replace(MODEL, k=4), SamplingParams(0.5, 2)) < TOLERANCE


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(("k", "dropped"), [(3, 1), (3, 2), (2, 2)])
def test_the_scheduler_drops_drafts(draft: str, k: int, dropped: int) -> None:
    """Without any left the call is plain decoding of K + 1 tokens, which the end token may cut short."""
    assert distance(replace(DRAFTS[draft], k=k, target=other(TARGET, dropped=dropped)), ENDING) < TOLERANCE


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(("k", "most"), [(3, 2), (2, 0)])
def test_the_manifest_promised_too_many_drafts(draft: str, k: int, most: int) -> None:
    """The engine refuses them; the same call goes out with as many as it takes."""
    engine = other(TARGET, max_draft_len=most, max_seq_len=TARGET.max_seq_len)
    assert distance(replace(DRAFTS[draft], k=k, target=engine), WARM) < TOLERANCE


@pytest.mark.parametrize("padded", [6, 7, 9])
def test_a_draft_with_more_tokens_than_the_target(padded: int) -> None:
    """Token 5 is the draft's alone: the block is cut before it. The widths are smaller, larger, or other than 8."""
    wide = other(DRAFT, vocab=6, padded=padded)
    for k in (1, 2):
        assert distance(replace(MODEL, draft=wide, k=k), WARM) < TOLERANCE
    assert distance(replace(GREEDY_DRAFT, draft=wide), WARM) < TOLERANCE


def test_the_rounds_are_worth_testing() -> None:
    """Drafts are kept and rejected, the end token comes as a draft, a correction and a bonus."""
    law = one_round(MODEL, ENDING)
    assert sum(mass for tokens, mass in law.items() if tokens[-1] == END) > 0.3
    by_length = [sum(mass for tokens, mass in law.items() if len(tokens) == length) for length in (1, 2, 3)]
    assert min(by_length) > 0.1
    assert END in NGRAM[:3]


def dialects(**changes: Any) -> Dialect:
    return replace(Dialect.of(manifest("target", TARGET)), **changes)


def test_planted_no_division_by_the_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_draft, "log_q", lambda logits, sampling, manifest: logits)
    assert distance(MODEL, WARM) > PLANTED


def test_planted_top_p_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent beside top_k 0 it means greedy there."""
    encode = adapter.encode_request

    def without(request: Any, dialect: Dialect) -> Any:
        call = encode(request, dialect)
        call.tensors.pop("runtime_top_p", None)
        return call

    monkeypatch.setattr(adapter, "encode_request", without)
    assert distance(LOOK_UP, WARM) > PLANTED


def test_planted_one_hot_laws_left_out() -> None:
    """Its own token match draws twice: P(x) = p (2 - p)."""
    for setting in (LOOK_UP, GREEDY_DRAFT):
        assert distance(replace(setting, target_dialect=dialects(one_hot_logits=False)), WARM) > PLANTED


def test_planted_dropped_drafts_taken_for_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bonus that happens to be the next draft then reads as accepted, and the missing bonus as the end token."""
    decode = adapter.decode_result

    def all_verified(tensors: Any, request: Any, dialect: Dialect) -> Any:
        return decode({**tensors, "total_draft_tokens": np.array([[len(request.draft_ids)]])}, request, dialect)

    monkeypatch.setattr(adapter, "decode_result", all_verified)
    assert distance(replace(LOOK_UP, target=other(TARGET, dropped=1)), WARM) > PLANTED


def test_planted_end_token_not_inferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be drawn again in the next round; and after dropped drafts a short answer would go on."""
    verdict = verifier.Verdict
    monkeypatch.setattr(verifier, "Verdict", lambda *fields: verdict(*fields[:3], False, *fields[4:]))
    assert distance(MODEL, ENDING) > PLANTED
    monkeypatch.undo()

    def by_prefix_alone(tokens: Any, drafted: int, accepted: int, ended: bool, *rest: Any) -> Any:
        return verdict(tokens, drafted, accepted, len(tokens) == accepted, *rest)

    monkeypatch.setattr(verifier, "Verdict", by_prefix_alone)
    assert distance(replace(MODEL, target=other(TARGET, dropped=2)), ENDING) > PLANTED


def test_planted_penalties_not_rescaled() -> None:
    setting = replace(LOOK_UP, target_dialect=dialects(temperature_first=False))
    assert distance(setting, PENALISED) > PLANTED


def test_planted_padding_counted_as_tokens() -> None:
    """The softmax of the draft's raw logits then gives mass to columns that it never draws."""
    draft = replace(Dialect.of(manifest("draft", DRAFT)), vocab_size=None)
    target = dialects(vocab_size=None)
    assert distance(replace(MODEL, draft_dialect=draft, target_dialect=target), WARM) > PLANTED


def test_planted_min_tokens_of_the_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call counts its own tokens: the same number in every round holds the end token back too long."""
    request = verifier.StepRequest
    monkeypatch.setattr(verifier, "StepRequest", lambda **fields: request(**{**fields, "min_tokens": 3}))
    assert distance(MODEL, ENDING, 3) > PLANTED
