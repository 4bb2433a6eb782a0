"""What the calls of a request carry to the engines."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.drafting.model import ModelDrafter
from pipeline.engine.step import StepRequest, StepResult
from pipeline.sampling.params import SamplingParams
from pipeline.sampling.random import call_seed

from .scripted import (
    ScriptedModel,
    ask,
    make_manifest,
    make_rig,
    run,
)

SCRIPT = "the quick brown fox jumps over the lazy dog"
SAMPLED = SamplingParams(temperature=1.0)


def model_answer(vocab: int = 257) -> Any:
    def answer(request: StepRequest) -> StepResult:
        ids = tuple((request.input_ids[-1] + 1 + i) % 250 for i in range(request.max_new_tokens))
        logits = np.zeros((len(ids), vocab), np.float32) if request.return_logits else None
        return StepResult(ids, generation_logits=logits)

    return answer


def run_with_model(request: Any, draft: ScriptedModel) -> list[StepRequest]:
    rig = make_rig(SCRIPT, k=3, drafter=ModelDrafter(draft, make_manifest(), 5.0))
    run(rig, request)
    return rig.target.calls


def test_every_call_has_a_seed_and_an_id_of_its_own() -> None:
    """One seed per (request, round, role): draft and target never share one; ids are unique over requests."""
    draft = ScriptedModel(model_answer())
    request = ask(seed=11, sampling=SAMPLED)
    target_calls = run_with_model(request, draft)
    calls = [*target_calls, *draft.calls]
    assert len({call.seed for call in calls}) == len(calls)
    assert [call.seed for call in target_calls] == [call_seed(11, i, "target") for i in range(len(target_calls))]
    rounds = [i for i, call in enumerate(target_calls) if call.draft_ids]
    assert [call.seed for call in draft.calls] == [call_seed(11, i, "draft") for i in rounds]
    again = [*run_with_model(request, draft)]
    assert [call.seed for call in again] == [call.seed for call in target_calls]
    ids = [call.request_id for call in [*target_calls, *again, *draft.calls]]
    assert len(set(ids)) == len(ids)


def test_what_calls_carry() -> None:
    """The target gets end_id, options and arrival; the draft no end_id, and the same prefix as the target."""
    draft = ScriptedModel(model_answer())
    target_calls = run_with_model(ask(seed=1, sampling=SAMPLED), draft)
    assert {call.end_id for call in target_calls} == {256}
    assert {call.end_id for call in draft.calls} == {None}
    assert {call.sampling for call in target_calls} == {SAMPLED}
    assert len({call.arrival for call in [*target_calls, *draft.calls]}) == 1
    speculative = [call for call in target_calls if call.draft_ids]
    assert [call.input_ids for call in draft.calls] == [call.input_ids for call in speculative]
    assert all(call.draft_logits is not None and len(call.draft_logits) == len(call.draft_ids) for call in speculative)


def test_no_seed_is_a_fresh_one() -> None:
    """Two requests without a seed differ, and each says which seed it had."""
    seeds = {run(make_rig(SCRIPT), ask(sampling=SAMPLED)).statistics.seed for _ in range(3)}
    assert len(seeds) == 3
