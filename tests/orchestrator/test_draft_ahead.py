"""Drafts made while the block before is verified: the same text, used only where they fit, and no trace where not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.drafting.base import Offer
from pipeline.drafting.hybrid import HybridDrafter
from pipeline.drafting.model import ModelDrafter
from pipeline.drafting.ngram import NgramDrafter
from pipeline.engine.manifest import CostTable
from pipeline.engine.step import StepRequest, StepResult
from pipeline.errors import StepError
from pipeline.metrics import catalogue as metrics
from pipeline.metrics.tally import Tally
from pipeline.orchestrator.controllers.base import Decision, Observation, RoundTimes
from pipeline.orchestrator.controllers.fixed import FixedController
from pipeline.orchestrator.recorder import TallyRecorder
from pipeline.orchestrator.trace.line import TRACE_VERSION, TraceStart
from pipeline.orchestrator.trace.reader import read_trace
from pipeline.orchestrator.trace.writer import TraceWriter

from .scripted import PROMPT, WRONG, Rig, ScriptedModel, TargetScript, ask, make_manifest, make_rig, run
from .simulation import goodput

SCRIPT = "the quick brown fox jumps over the lazy dog and so on"
Answer = Callable[[StepRequest], StepResult | Exception | None]


def is_ahead(request: StepRequest) -> bool:
    return "/ahead/" in request.request_id


def drafting(wrong: frozenset[int] = frozenset()) -> Answer:
    """A draft that follows the script but at the given places of the answer."""
    script = TargetScript(list(SCRIPT.encode()), len(PROMPT))

    def answer(request: StepRequest) -> StepResult:
        first = len(request.input_ids) - len(PROMPT)
        places = range(first, first + request.max_new_tokens)
        return StepResult(tuple(WRONG if place in wrong else script.at(place) for place in places))

    return answer


def make(
    answer: Answer, k: int = 4, ahead: bool = True, deadline_s: float = 5.0, trace: TraceWriter | None = None
) -> tuple[Rig, ScriptedModel]:
    model = ScriptedModel(answer)
    drafter = ModelDrafter(model, make_manifest(), deadline_s)
    return make_rig(SCRIPT, k=k, drafter=drafter, draft_ahead=ahead, trace=trace), model


def test_a_draft_that_is_right_is_never_waited_for(tmp_path: Path) -> None:
    """One fresh call, then every round takes what was made ahead; statistics, metrics and trace say so."""
    costs = CostTable(context_tokens=1, seconds_by_tokens={1: 0.01})
    start = TraceStart(TRACE_VERSION, "t", "fixed", 8, 8, costs, costs, 0.0)
    rig, draft = make(drafting(), trace=TraceWriter(tmp_path / "t.jsonl", start))
    rig.orchestrator.recorder = TallyRecorder(tally := Tally())
    outcome = run(rig, ask(max_tokens=32))
    rig.orchestrator.close()
    assert outcome.text == SCRIPT[:32]
    rounds = [chunk.round for chunk in outcome.chunks if chunk.round is not None and chunk.round.drafted]
    assert [record.ahead for record in rounds] == [False] + [True] * (len(rounds) - 1)
    assert [is_ahead(call) for call in draft.calls] == [False] + [True] * (len(draft.calls) - 1)
    used = len(rounds) - 1
    assert (outcome.statistics.drafts_ahead, outcome.statistics.drafts_ahead_used) == (used, used)
    lines = [line for answer in read_trace(tmp_path / "t.jsonl").answers for line in answer]
    assert [line.ahead for line in lines if line.drafted] == [record.ahead for record in rounds]
    assert [line.offers[0].ready for line in lines if line.drafted] == [record.ahead for record in rounds]
    counted = {item.series: item.amount for item in tally.take()}
    assert counted[metrics.DRAFTS_AHEAD.name] == counted[metrics.DRAFTS_AHEAD_USED.name] == used


def test_a_short_first_block_does_not_keep_k_small() -> None:
    """A probe of one token is followed by as many as the controller wants, also where blocks are made ahead."""
    rig, _ = make(drafting(), k=6)
    wanted = iter([1])

    class Growing(FixedController):
        def choose(self, offers: Sequence[Offer], remaining: int, load: int) -> Decision:
            decision = super().choose(offers, remaining, load)
            return replace(decision, k=min(decision.k, next(wanted, decision.k)))

    rig.orchestrator._intake._controllers.start = lambda: Growing(6, 8)  # type: ignore[method-assign]
    outcome = run(rig, ask(max_tokens=40))
    drafted = [chunk.round.drafted for chunk in outcome.chunks if chunk.round is not None and chunk.round.drafted]
    assert outcome.text == SCRIPT[:40] and drafted[0] == 1 and max(drafted) == 6


def test_the_draft_is_asked_before_the_target() -> None:
    order: list[str] = []
    rig, draft = make(drafting())
    follows = drafting()
    draft._answer = lambda request: order.append(request.request_id.split("/")[1]) or follows(request)  # type: ignore[func-returns-value]
    script = rig.target._answer
    rig.target._answer = lambda request: order.append("target") or script(request)  # type: ignore[func-returns-value]
    run(rig, ask(max_tokens=12))
    assert order == ["target", "draft", "ahead", "target", "target", "target"], "nothing follows the second block"


@given(wrong=st.frozensets(st.integers(0, 30), max_size=8), k=st.integers(1, 6), max_tokens=st.integers(1, 30))
def test_the_text_and_the_counts_are_those_without_it(wrong: frozenset[int], k: int, max_tokens: int) -> None:
    """Wherever the draft is wrong: what was dropped left no trace, and nothing beyond the answer is asked for."""
    request = ask(max_tokens=max_tokens)
    (rig, draft), (plain, _) = make(drafting(wrong), k), make(drafting(wrong), k, ahead=False)
    found, expected = run(rig, request), run(plain, request)
    assert found.token_ids == expected.token_ids == list(SCRIPT[:max_tokens].encode())
    assert [call.draft_ids for call in rig.target.calls] == [call.draft_ids for call in plain.target.calls]
    for name in ("num_draft_tokens", "num_accepted_draft_tokens", "spec_rounds", "decisions", "acceptance_histogram"):
        assert getattr(found.statistics, name) == getattr(expected.statistics, name), name
    assert all(len(call.input_ids) + call.max_new_tokens <= len(PROMPT) + max_tokens - 1 for call in draft.calls)
    # Used where a whole block and the place behind it were right, and another block of the answer followed.
    blocks = [(call.input_ids, call.draft_ids) for call in rig.target.calls if call.draft_ids]
    used = 0
    for (text, ids), (_, _following) in itertools.pairwise(blocks):
        first = len(text) - len(PROMPT)
        used += not wrong & set(range(first, first + len(ids) + 1))
    assert found.statistics.drafts_ahead_used == used
    assert found.statistics.drafts_ahead == sum(map(is_ahead, draft.calls))


def hanging(wrong: frozenset[int]) -> Answer:
    """Calls ahead are never answered."""
    follows = drafting(wrong)
    return lambda request: None if is_ahead(request) else follows(request)


def test_a_call_that_became_useless_is_stopped_and_not_waited_for() -> None:
    rig, draft = make(hanging(frozenset({2, 6, 9, 13, 17, 19})))
    outcome = run(rig)
    assert outcome.text == SCRIPT[:20] and outcome.statistics.draft_failures == 0
    assert draft.stopped == [call.request_id for call in draft.calls if is_ahead(call)] != []
    assert outcome.statistics.drafts_ahead_used == 0


def test_a_call_that_hangs_costs_its_deadline_and_degrades() -> None:
    """All was accepted, so the next round waits for it: until its deadline, then decodes plainly."""
    rig, draft = make(hanging(frozenset()), deadline_s=0.05)
    outcome = run(rig)
    assert outcome.text == SCRIPT[:20] and outcome.statistics.draft_failures == 1
    assert outcome.statistics.decisions["draft_failed"] == 1
    assert [is_ahead(call) for call in draft.calls] == [False, True] and draft.stopped == [draft.calls[1].request_id]


@pytest.mark.parametrize(("wrong", "failures"), [(frozenset[int](), 1), (frozenset(range(40)), 0)])
def test_a_call_that_fails(wrong: frozenset[int], failures: int) -> None:
    """It counts where it is wanted; where it is not, nobody learns of it."""
    follows = drafting(wrong)
    rig, draft = make(lambda request: StepError("broken") if is_ahead(request) else follows(request))
    outcome = run(rig)
    assert outcome.text == SCRIPT[:20]
    assert outcome.statistics.draft_failures == rig.orchestrator.draft_health.failures == failures
    assert any(map(is_ahead, draft.calls))


@pytest.mark.parametrize("way", ["cancel", "close"])
def test_nothing_runs_on_for_a_request_that_has_ended(way: str) -> None:
    rig, draft = make(hanging(frozenset()))
    gone = False
    answer = rig.orchestrator.generate(ask(), lambda: gone)
    next(answer)
    next(answer)
    assert is_ahead(draft.calls[-1]) and not draft.stopped
    if way == "cancel":
        gone = True
        assert next(answer).finish_reason == "cancelled"
    else:
        answer.close()  # type: ignore[attr-defined]
    assert draft.stopped == [draft.calls[-1].request_id]


def test_a_decision_for_another_source_drops_it() -> None:
    """Look-up comes first where it has something: what the model made ahead is dropped, and never used later."""
    model = ScriptedModel(drafting())
    drafter = HybridDrafter([NgramDrafter(2, 4), ModelDrafter(model, make_manifest(), 5.0)])
    rig = make_rig("abcdefabcdefxyzabcdef", k=3, drafter=drafter, draft_ahead=True)
    script = TargetScript(list(b"abcdefabcdefxyzabcdef"), len(PROMPT))
    model._answer = lambda request: StepResult(
        tuple(script.at(len(request.input_ids) - len(PROMPT) + i) for i in range(request.max_new_tokens))
    )
    outcome = run(rig, ask(max_tokens=24))
    assert outcome.text == "abcdefabcdefxyzabcdef..."
    by_source = [(record.source, record.ahead) for chunk in outcome.chunks if (record := chunk.round) is not None]
    assert ("ngram", False) in by_source and ("model", True) in by_source and ("ngram", True) not in by_source
    assert outcome.statistics.drafts_ahead > outcome.statistics.drafts_ahead_used > 0


def test_what_is_ready_costs_no_time_and_teaches_no_price() -> None:
    """A K that would not pay if it had to be drafted, does; and the price of drafting stays what it was."""
    slow = goodput(draft=lambda tokens: 0.02)
    controller = slow.start()
    for _ in range(30):
        controller.observe(Observation("model", 4, 2, 3, 1, RoundTimes(0.08, 0.0136, 0.0003)))
        controller.observe(Observation(None, 0, 0, 4, 1, RoundTimes(0.0, 0.04, 0.0003)))
    price = slow._costs.draft_s("model", 4, 1)
    offer = Offer("model", "model", 8)
    assert controller.choose([offer], 100, 1).reason != "pays"
    assert controller.choose([Offer("model", "model", 4, ready=True)], 100, 1).reason == "pays"
    for _ in range(30):
        controller.observe(Observation("model", 4, 2, 3, 1, RoundTimes(0.0, 0.0136, 0.0003), ahead=True))
    assert slow._costs.draft_s("model", 4, 1) == pytest.approx(price, rel=0.1)
