"""From a step model's answer to a verdict, by the rules that both kinds of engine follow."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.drafting.base import Draft
from pipeline.engine.step import KvUse, StepRequest, StepResult
from pipeline.engine.waiting import call
from pipeline.errors import StepError, StepTimeoutError
from pipeline.orchestrator.verifier import StepVerifier, TargetContext, Verdict
from pipeline.sampling.params import SamplingParams
from pipeline.sampling.random import call_seed

from .scripted import ScriptedModel

CONTEXT = TargetContext("r", 2, SamplingParams(1.0), 5, 9, "block", 3)
KV = KvUse(reused_blocks=2)


def verify(output: tuple[int, ...], used: int, drafts: tuple[int, ...] = (1, 2, 3)) -> Verdict:
    model = ScriptedModel(lambda request: StepResult(output, used, kv=KV))
    return StepVerifier(model, 5.0).verify(CONTEXT, (7, 8), Draft("model", drafts), 4)


@pytest.mark.parametrize(
    ("output", "used", "accepted", "ended"),
    [
        ((1, 2, 3, 4), 3, 3, False),
        ((1, 2, 3), 3, 3, True),  # the bonus was the end token
        ((1, 2, 5), 3, 2, False),
        ((1, 2), 3, 2, True),  # the correction, or the third draft, was the end token
        ((5,), 3, 0, False),
        ((), 3, 0, True),
        ((1, 2), 1, 1, False),  # one draft verified: the second token is a bonus, though a draft said it too
        ((1,), 1, 1, True),
        ((4, 5, 6, 7), 0, 0, False),  # all dropped: plain decoding of K + 1 tokens
        ((1,), 0, 0, True),  # ... that met the end token, though it began as the drafts did
        ((), 0, 0, True),
    ],
)
def test_accepted_is_the_common_prefix(output: tuple[int, ...], used: int, accepted: int, ended: bool) -> None:
    """Of the output and the drafts that were verified; a token short of a correction or bonus means EOS."""
    assert verify(output, used) == Verdict(output, used, accepted, ended, KV)


@settings(derandomize=True, deadline=None)
@given(
    drafts=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    own=st.lists(st.integers(0, 3), min_size=7, max_size=7),
    used=st.integers(0, 6),
)
def test_any_engine(drafts: list[int], own: list[int], used: int) -> None:
    """An engine that compares `used` drafts with its own tokens, 3 being the end token, is read right."""
    used = min(used, len(drafts))
    output: list[int] = []
    accepted = 0
    ended = False
    for i in range(used + 1 if used else len(drafts) + 1):
        ended = own[i] == 3
        if ended:
            break
        output.append(own[i])
        if used and (i == used or own[i] != drafts[i]):
            break
        accepted += i < used
    verdict = verify(tuple(output), used, tuple(drafts))
    assert (verdict.accepted, verdict.drafted) == (accepted, used)
    assert verdict.ended == ended


@pytest.mark.parametrize(("output", "ended"), [((1, 2, 3), False), ((1, 2), True), ((), True)])
def test_plain_decoding_that_ends(output: tuple[int, ...], ended: bool) -> None:
    """Fewer tokens than the burst means EOS."""
    verdict = StepVerifier(ScriptedModel(lambda request: StepResult(output)), 5.0).decode(CONTEXT, (7,), 3, 0)
    assert (verdict.tokens, verdict.drafted, verdict.accepted, verdict.ended) == (output, 0, 0, ended)


def test_what_is_sent() -> None:
    """A verify asks for K + 1 tokens with the drafts and their laws; a burst for its length, without."""
    model = ScriptedModel(lambda request: StepResult((1,)))
    verifier = StepVerifier(model, 5.0)
    logits = np.zeros((2, 4), np.float32)
    verifier.verify(CONTEXT, (7, 8), Draft("model", (1, 2), logits), 4)
    verifier.decode(CONTEXT, (7, 8, 1), 6, 5)
    sent, plain = model.calls
    assert (sent.max_new_tokens, sent.draft_ids, sent.input_ids) == (3, (1, 2), (7, 8))
    assert sent.draft_logits is logits and not sent.return_logits
    assert (plain.max_new_tokens, plain.draft_ids, plain.draft_logits) == (6, (), None)
    for each in model.calls:
        assert (each.end_id, each.rule, each.arrival, each.sampling) == (9, "block", 3, CONTEXT.sampling)
    assert sent.seed != plain.seed and sent.request_id != plain.request_id


def test_min_tokens_counts_what_is_generated() -> None:
    """Every call is told how many of the wanted tokens are still to come, drafts of the round included."""
    model = ScriptedModel(lambda request: StepResult((1,)))
    verifier = StepVerifier(model, 5.0)
    context = replace(CONTEXT, min_tokens=3)
    for generated in range(6):
        verifier.verify(context, (7, 8) + (1,) * generated, Draft("model", (1, 2)), generated)
        verifier.decode(context, (7, 8) + (1,) * generated, 1, generated)
    assert [sent.min_tokens for sent in model.calls] == [3, 3, 2, 2, 1, 1, 0, 0, 0, 0, 0, 0]


def test_seeds_by_rule() -> None:
    """Coupled calls carry the answer's own seed, whatever the round; others a seed of their round."""
    model = ScriptedModel(lambda request: StepResult((1,)))
    for rule in ("block", "token", "match", "coupled"):
        for index in (0, 1):
            StepVerifier(model, 5.0).decode(replace(CONTEXT, rule=rule), (7, 8), 1, index)
    seeds = [sent.seed for sent in model.calls]
    assert seeds == [call_seed(5, 0, "target"), call_seed(5, 1, "target")] * 3 + [5, 5]


def test_log_probs_come_with_every_token() -> None:
    """One per token, or the answer is not taken."""
    verifier = StepVerifier(ScriptedModel(lambda request: StepResult((1, 2), log_probs=(-0.5, -1.5))), 5.0)
    context = replace(CONTEXT, return_log_probs=True)
    assert verifier.decode(context, (7, 8), 2, 0).log_probs == (-0.5, -1.5)
    lacking = StepVerifier(ScriptedModel(lambda request: StepResult((1, 2), log_probs=(-0.5,))), 5.0)
    with pytest.raises(StepError, match="the target returned 1 log-probs, 2 tokens"):
        lacking.decode(context, (7, 8), 2, 0)


def test_errors_pass() -> None:
    """An engine's error is the caller's, and stops nothing."""
    model = ScriptedModel(lambda request: StepError("broken"))
    with pytest.raises(StepError, match="broken"):
        StepVerifier(model, 5.0).decode(CONTEXT, (7,), 1, 0)
    assert model.stopped == []


def test_waiting_has_a_bound() -> None:
    """No answer: an error that names role and deadline, and the engine is asked to stop that call."""
    model = ScriptedModel(lambda request: None)
    with pytest.raises(StepTimeoutError, match=r"the draft did not answer within 0.02 s; the call was abandoned"):
        call(model, StepRequest("mine", (1,), 1), 0.02, "draft")
    assert model.stopped == ["mine"]


def test_a_late_answer_in_time() -> None:
    """Who answers before the deadline is waited for."""

    class Late(ScriptedModel):
        def submit(self, request: StepRequest) -> Future[StepResult]:
            future: Future[StepResult] = Future()
            threading.Timer(0.02, future.set_result, [StepResult((1,))]).start()
            return future

    assert call(Late(lambda request: None), StepRequest("r", (1,), 1), 30.0, "target").output_ids == (1,)


@pytest.mark.parametrize("token", [-1, 10])
def test_a_token_that_does_not_exist(token: int) -> None:
    """Text cannot be made of it: an error, not a gap in the answer."""
    model = ScriptedModel(lambda request: StepResult((1, token), 3))
    with pytest.raises(StepError, match=rf"token {token}: a token id must be in \[0, 10\)"):
        StepVerifier(model, 5.0, 10).verify(CONTEXT, (7, 8), Draft("model", (1, 2, 3)), 4)


def test_log_probs_that_are_no_numbers() -> None:
    model = ScriptedModel(lambda request: StepResult((1,), log_probs=(float("nan"),)))
    with pytest.raises(StepError, match="not a number"):
        StepVerifier(model, 5.0).decode(replace(CONTEXT, return_log_probs=True), (7, 8), 1, 4)
