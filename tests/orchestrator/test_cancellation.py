"""A request that is withdrawn ends at the next look, gives its slot back, and disturbs nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pipeline.engine.step import StepRequest, StepResult
from pipeline.orchestrator.admission import Admission

from .scripted import Rig, TargetScript, ask, eventually, make_rig, run

SCRIPT = "the quick brown fox jumps over the lazy dog"


def after(looks: int) -> Callable[[], bool]:
    """A client that is gone at the given look."""
    seen = iter(range(10**6))
    return lambda: next(seen) >= looks


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("looks", range(5))
def test_between_rounds(looks: int, stream: bool) -> None:
    """Looked at before every round, the first included: what was committed is sent, nothing more is computed."""
    rig = make_rig(SCRIPT, k=4)
    outcome = run(rig, ask(stream=stream, exclude_input_in_output=True), after(looks))
    assert outcome.reason == outcome.statistics.finish_reason == "cancelled"
    assert len(rig.target.calls) == outcome.statistics.rounds == looks
    assert outcome.text == SCRIPT[: len(outcome.token_ids)]
    assert len(outcome.token_ids) == [0, 1, 6, 11, 16][looks]


def test_during_a_call() -> None:
    """The round that is under way is finished and committed; the next one does not begin."""
    gone = threading.Event()
    follows = TargetScript(list(SCRIPT.encode()), 2)

    def answer(request: StepRequest) -> StepResult:
        if request.draft_ids:
            gone.set()
        return follows(request)

    rig = make_rig(SCRIPT, answer=answer)
    outcome = run(rig, is_cancelled=gone.is_set)
    assert (outcome.text, outcome.reason) == (SCRIPT[:6], "cancelled")


def in_thread(rig: Rig, is_cancelled: Callable[[], bool]) -> tuple[threading.Thread, list[str | None]]:
    reasons: list[str | None] = []

    def work() -> None:
        reasons.append(list(rig.orchestrator.generate(ask(), is_cancelled))[-1].finish_reason)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, reasons


def test_while_it_waits_for_admission() -> None:
    """It leaves the line without a target call, and who stood behind it gets in."""
    rig = make_rig(SCRIPT)
    rig.orchestrator.admission = Admission(64, 8, max_requests=1)
    running = rig.orchestrator.generate(ask())
    assert next(running).text == "t"
    calls = len(rig.target.calls)
    gone = threading.Event()
    first, reasons = in_thread(rig, gone.is_set)
    eventually(lambda: rig.orchestrator.admission.waiting == 1)
    second, others = in_thread(rig, lambda: False)
    eventually(lambda: rig.orchestrator.admission.waiting == 2)
    gone.set()
    first.join(10)
    assert reasons == ["cancelled"] and len(rig.target.calls) == calls
    assert rig.orchestrator.admission.waiting == 1
    assert list(running)[-1].finish_reason == "length"
    second.join(10)
    assert others == ["length"]
    assert rig.orchestrator.admission.running == rig.orchestrator.admission.waiting == 0


def test_a_consumer_that_stops_listening() -> None:
    """Closing the iterator, or dropping it, gives the slot back."""
    rig = make_rig(SCRIPT)
    answer = rig.orchestrator.generate(ask())
    next(answer)
    assert rig.orchestrator.admission.running == 1
    answer.close()  # type: ignore[attr-defined]
    assert rig.orchestrator.admission.running == 0
