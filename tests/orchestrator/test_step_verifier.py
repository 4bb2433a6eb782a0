"""From a step model's answer to a verdict, by the rules that both kinds of engine follow."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.drafting.base import Draft
from pipeline.engine.step import KvUse, StepResult
from pipeline.engine.waiting import abandoned_calls, wait_for
from pipeline.errors import StepError, StepTimeoutError
from pipeline.orchestrator.verifier import StepVerifier, TargetContext, Verdict
from pipeline.sampling.params import SamplingParams

from .scripted import ScriptedModel

CONTEXT = TargetContext("r", SamplingParams(1.0), 5, 9, "block", 3)
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
        ((1,), 0, 0, False),
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
    for i in range(used + 1):
        if own[i] == 3:
            break
        output.append(own[i])
        if i == used or own[i] != drafts[i]:
            break
        accepted += 1
    verdict = verify(tuple(output), used, tuple(drafts))
    assert (verdict.accepted, verdict.drafted) == (accepted, used)
    assert verdict.ended == (own[len(output)] == 3 if len(output) <= accepted else False)


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
    for call in model.calls:
        assert (call.end_id, call.rule, call.arrival, call.sampling) == (9, "block", 3, CONTEXT.sampling)
    assert sent.seed != plain.seed and sent.request_id != plain.request_id


def test_errors_pass() -> None:
    """An engine's error is the caller's, and is no abandoned call."""
    before = abandoned_calls()
    verifier = StepVerifier(ScriptedModel(lambda request: StepError("broken")), 5.0)
    with pytest.raises(StepError, match="broken"):
        verifier.decode(CONTEXT, (7,), 1, 0)
    assert abandoned_calls() == before


def test_waiting_has_a_bound() -> None:
    """No answer: an error that names role and deadline, in time, and one more abandoned call."""
    before, started = abandoned_calls(), time.monotonic()
    with pytest.raises(StepTimeoutError, match=r"the draft did not answer within 0.02 s; the call was abandoned"):
        wait_for(Future(), 0.02, "draft")
    assert abandoned_calls() == before + 1
    assert time.monotonic() - started < 5


def test_a_late_answer_in_time() -> None:
    """Who answers before the deadline is waited for."""
    future: Future[StepResult] = Future()
    timer = threading.Timer(0.02, future.set_result, [StepResult((1,))])
    timer.start()
    assert wait_for(future, 30.0, "target").output_ids == (1,)
