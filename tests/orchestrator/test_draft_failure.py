"""A draft that fails costs time, never the request and never a token; a target that fails ends it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from pipeline.drafting.hybrid import HybridDrafter
from pipeline.drafting.model import ModelDrafter
from pipeline.drafting.ngram import NgramDrafter
from pipeline.engine.step import StepRequest, StepResult
from pipeline.errors import InvalidRequestError, SpecDecodeError, StepError, StepTimeoutError
from pipeline.orchestrator import draft_health
from pipeline.orchestrator.draft_health import FIRST_PAUSE_S, LONGEST_PAUSE_S, DraftHealth
from pipeline.sampling.params import SamplingParams

from .scripted import ScriptedDrafter, ScriptedModel, TargetScript, ask, make_manifest, make_rig, run

SCRIPT = "the quick brown fox jumps over the lazy dog"
ERRORS = [
    StepError("the draft died"),
    StepTimeoutError("the draft did not answer"),
    InvalidRequestError("input_ids", 300, "must be a token id in [0, 257)"),
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time as draft_health sees it; `now` moves it."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(draft_health, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_failing_draft_degrades(error: SpecDecodeError, clock: SimpleNamespace) -> None:
    """The text is unchanged, the failure is counted, and the draft is left alone for a while."""
    rig = make_rig(SCRIPT, error=error)
    outcome = run(rig)
    assert (outcome.text, outcome.reason) == (SCRIPT[:20], "length")
    assert outcome.statistics.draft_failures == rig.orchestrator.draft_health.failures == 1
    assert outcome.statistics.decisions == {"first_token": 1, "draft_failed": 1, "draft_resting": 17, "last_token": 1}
    assert outcome.statistics.plain_decisions == outcome.statistics.decisions
    assert set(rig.verified) == {0} and outcome.statistics.draft_s > 0
    assert cast(ScriptedDrafter, rig.drafter).proposed == [(1, 4)]


def test_one_failed_round(clock: SimpleNamespace) -> None:
    """The round of the failure decodes one token; after the rest the same request speculates again."""
    rig = make_rig(SCRIPT, error=ERRORS[0], fails=lambda index: index == 2)
    follows = TargetScript(list(SCRIPT.encode()), 2)

    def answer(request: StepRequest) -> StepResult:
        if len(rig.target.calls) == 5:
            clock.now += FIRST_PAUSE_S
        return follows(request)

    rig.target._answer = answer
    outcome = run(rig)
    assert outcome.text == SCRIPT[:20]
    assert rig.verified == [0, 4, 0, 0, 0, 4, 4, 0]
    assert outcome.statistics.draft_failures == 1


def test_a_draft_that_works_again_is_trusted_again(clock: SimpleNamespace) -> None:
    """Good rounds between two failures: the second rest is as short as the first."""
    rig = make_rig(SCRIPT, k=1, error=ERRORS[0], fails=lambda index: index in (1, 4))
    follows = TargetScript(list(SCRIPT.encode()), 2)

    def answer(request: StepRequest) -> StepResult:
        if len(rig.target.calls) in (2, 5):
            clock.now += FIRST_PAUSE_S
        return follows(request)

    rig.target._answer = answer
    assert run(rig).statistics.draft_failures == 2
    assert rig.verified[:8] == [0, 0, 1, 1, 0, 1, 1, 1]


def test_a_draft_that_the_target_refuses(clock: SimpleNamespace) -> None:
    """Decoding plainly instead would withhold the proposal and change the law: the request fails."""

    def answer(request: StepRequest) -> StepResult | Exception:
        if 200 in request.draft_ids:
            return InvalidRequestError("draft_input_ids", 200, "must be a token id in [0, 200)")
        return StepResult(tuple(SCRIPT.encode())[:1])

    draft = ScriptedModel(lambda request: StepResult((200,) * request.max_new_tokens))
    rig = make_rig(SCRIPT, drafter=ModelDrafter(draft, make_manifest(), 5.0), answer=answer)
    with pytest.raises(InvalidRequestError, match="draft_input_ids = 200"):
        run(rig)


LAWS = np.zeros((2, 257), np.float32)
NONSENSE = {
    "no token": StepResult(()),
    "no generation_logits": StepResult((65, 66)),
    "beyond the vocabulary": StepResult((65, 257), generation_logits=LAWS),
    "negative": StepResult((-1, 66), generation_logits=LAWS),
    "NaN": StepResult((65, 66), generation_logits=np.where(np.arange(257) == 3, np.nan, LAWS)),
    "infinite": StepResult((65, 66), generation_logits=np.where(np.arange(257) == 3, np.inf, LAWS)),
    "no law": StepResult((65, 66), generation_logits=np.full_like(LAWS, -np.inf)),
    "impossible": StepResult((65, 66), generation_logits=np.where(np.arange(257) == 66, -1e9, LAWS)),
    "too narrow": StepResult((65, 66), generation_logits=LAWS[:, :66]),
}


@pytest.mark.parametrize("result", NONSENSE.values(), ids=NONSENSE)
def test_a_draft_that_answers_nonsense(result: StepResult, clock: SimpleNamespace) -> None:
    """No token, one that does not exist, or no law that sampling can use, is a failure too."""
    rig = make_rig(SCRIPT, drafter=ModelDrafter(ScriptedModel(lambda request: result), make_manifest(), 5.0))
    outcome = run(rig, ask(sampling=SamplingParams(1.0), seed=1, num_draft_tokens=2))
    assert outcome.text == SCRIPT[:20] and outcome.statistics.draft_failures == 1
    assert not outcome.statistics.reproducible, "when a draft fails, no seed can tell"


def test_a_law_that_is_none_ends_the_block_before_it() -> None:
    """Whether it is one depends on the drafts before it: to refuse those would withhold them for what they are."""
    laws = LAWS.copy()
    laws[1, 3] = np.nan
    answer = StepResult((ord("t"), 66), generation_logits=laws)
    draft = ScriptedModel(lambda request: answer)
    rig = make_rig(SCRIPT, drafter=ModelDrafter(draft, make_manifest(), 5.0))
    outcome = run(rig, ask(sampling=SamplingParams(1.0), seed=1, num_draft_tokens=2))
    drafted = [len(call.draft_ids) for call in rig.target.calls if call.draft_ids]
    assert outcome.text == SCRIPT[:20] and outcome.statistics.draft_failures == 0 and set(drafted) == {1}


def test_a_hung_draft(clock: SimpleNamespace) -> None:
    """The call is given up at its deadline and stopped; the request goes on."""
    draft = ScriptedModel(lambda request: None)
    rig = make_rig(SCRIPT, drafter=ModelDrafter(draft, make_manifest(), 0.05))
    outcome = run(rig)
    assert outcome.text == SCRIPT[:20] and outcome.statistics.draft_failures == 1
    assert draft.stopped == [draft.calls[0].request_id]


def test_a_failing_target_ends_the_request() -> None:
    """Its error reaches the client, after what was committed before; the slot is free again."""
    follows = TargetScript(list(SCRIPT.encode()), 2)

    def answer(request: StepRequest) -> StepResult | Exception:
        return follows(request) if len(request.input_ids) < 8 else StepError("the target died")

    rig = make_rig(SCRIPT, answer=answer)
    texts = []
    with pytest.raises(StepError, match="the target died"):
        for chunk in rig.orchestrator.generate(ask()):
            texts.append(chunk.text)
    assert "".join(texts) == SCRIPT[:6]
    assert rig.orchestrator.admission.running == 0
    assert rig.orchestrator.draft_health.failures == 0


def test_a_hung_target() -> None:
    """A target that never answers ends the request at the deadline, names itself, and is asked to stop."""
    rig = make_rig(SCRIPT, answer=lambda request: None, target_s=0.05)
    with pytest.raises(StepTimeoutError, match=r"the target did not answer within 0.05 s"):
        list(rig.orchestrator.generate(ask()))
    assert rig.target.stopped == [rig.target.calls[0].request_id]
    assert rig.orchestrator.admission.running == 0


def test_a_target_that_answers_too_much() -> None:
    """More tokens than were asked for are an error, not text."""
    rig = make_rig(SCRIPT, answer=lambda request: StepResult((65,) * (request.max_new_tokens + 1)))
    with pytest.raises(StepError, match="the target returned 2 tokens, 1 were asked for"):
        list(rig.orchestrator.generate(ask()))


def test_rests_grow_and_end(clock: SimpleNamespace) -> None:
    """2, 4, 8, 16, 32, 60 seconds while it fails; one good call and the next rest is short again."""
    health = DraftHealth()
    assert health.usable
    for pause in (2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S):
        health.failed()
        clock.now += pause - 0.001
        assert not health.usable
        clock.now += 0.002
        assert health.usable
    health.worked()
    health.failed()
    clock.now += FIRST_PAUSE_S
    assert health.usable and health.failures == 7


def test_one_incident_is_one_rest(clock: SimpleNamespace) -> None:
    """Many requests in flight meet the same dead draft: all are counted, the rest stays the first one."""
    health = DraftHealth()
    for _ in range(32):
        health.failed()
    assert health.failures == 32
    clock.now += FIRST_PAUSE_S
    assert health.usable


def test_look_up_goes_on_while_the_model_rests(clock: SimpleNamespace) -> None:
    """A resting draft model takes no n-gram offers with it."""
    script = "one two, one two, one two, one two, "
    model = ModelDrafter(ScriptedModel(lambda request: StepError("dead")), make_manifest(), 5.0)
    rig = make_rig(script, drafter=HybridDrafter([NgramDrafter(3, 6), model]))
    outcome = run(rig, ask(max_tokens=36))
    assert outcome.text == script
    assert outcome.statistics.draft_failures == 1
    assert outcome.statistics.rounds_by_source["ngram"] > 3
