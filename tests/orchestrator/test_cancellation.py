"""A request that is withdrawn ends at the next look, gives its slot back, and disturbs nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pipeline.engine.step import StepRequest, StepResult
from pipeline.errors import OverloadedError, RequestTimeoutError
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


@pytest.mark.parametrize("reason", ["cancelled", "timeout"])
def test_in_the_middle_of_a_call(reason: str) -> None:
    """A call that nobody waits for is stopped, whatever its engine's deadline; nothing is held against the target."""
    follows = TargetScript(list(SCRIPT.encode()), 2)
    rig = make_rig(SCRIPT, target_s=60.0, answer=lambda call: follows(call) if len(call.input_ids) < 8 else None)
    request = ask(timeout=100_000) if reason == "timeout" else ask()
    outcome = run(rig, request, lambda: reason == "cancelled" and hung(rig))
    assert outcome.reason == reason and SCRIPT.startswith(outcome.text) and outcome.text
    assert rig.target.stopped == [rig.target.calls[-1].request_id]


def hung(rig: Rig) -> bool:
    return bool(rig.target.calls) and len(rig.target.calls[-1].input_ids) >= 8


def test_a_deadline_before_the_first_token() -> None:
    """An error: there is no text that could be given."""
    rig = make_rig(SCRIPT, target_s=60.0, answer=lambda call: None)
    with pytest.raises(RequestTimeoutError, match="timeout = 50000 us"):
        run(rig, ask(timeout=50_000))
    assert rig.target.stopped == [rig.target.calls[0].request_id] and rig.orchestrator.admission.running == 0


def test_a_wait_that_is_too_long() -> None:
    """The queue's limit counts from arrival; the client may try again."""
    rig = make_rig(SCRIPT)
    rig.orchestrator.admission = Admission(64, 8, max_requests=1)
    running = rig.orchestrator.generate(ask())
    next(running)
    with pytest.raises(OverloadedError, match="waited 120 s for its turn"):
        list(rig.orchestrator.generate(ask(waited_s=119.99)))
    assert list(running)[-1].finish_reason == "length"
