"""Draft and target work at the same time: for different requests always, for one where it drafts ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from pipeline.drafting.model import ModelDrafter
from pipeline.engine.step import StepModel, StepRequest, StepResult

from .scripted import PROMPT, ScriptedModel, TargetScript, ask, make_manifest, make_rig, run

SCRIPT = "the quick brown fox jumps over the lazy dog"
WAIT_S = 10.0
FOLLOWS = TargetScript(list(SCRIPT.encode()), len(PROMPT))


class Threaded(StepModel):
    """A step model with threads of its own, as engines have."""

    def __init__(self, answer: Callable[[StepRequest], StepResult]) -> None:
        self._answer = answer
        self._pool = ThreadPoolExecutor(4)

    def submit(self, request: StepRequest) -> Future[StepResult]:
        return self._pool.submit(self._answer, request)

    def stop(self, request_id: str) -> None: ...

    def close(self) -> None:
        self._pool.shutdown()


def drafted(request: StepRequest) -> StepResult:
    first = len(request.input_ids) - len(PROMPT)
    return StepResult(tuple(FOLLOWS.at(first + i) for i in range(request.max_new_tokens)))


def test_one_request_is_drafted_while_another_is_verified() -> None:
    """The target holds the first request's verify until the second request's draft call has come and gone."""
    verifying, draft_done = threading.Event(), threading.Event()
    first: list[str] = []

    def target(request: StepRequest) -> StepResult:
        own = request.request_id.split("/")[0]
        if request.draft_ids and not first:
            first.append(own)
            verifying.set()
            assert draft_done.wait(WAIT_S), "nothing was drafted while the target worked"
        return FOLLOWS(request)

    def draft(request: StepRequest) -> StepResult:
        if first and request.request_id.split("/")[0] != first[0]:
            assert not draft_done.is_set() or verifying.is_set()
            draft_done.set()
        return drafted(request)

    rig = make_rig(SCRIPT, drafter=ModelDrafter(ScriptedModel(draft), make_manifest(), WAIT_S), answer=target)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(lambda: list(rig.orchestrator.generate(ask())))
        assert verifying.wait(WAIT_S)
        two = pool.submit(lambda: list(rig.orchestrator.generate(ask())))
        for answer in (one.result(2 * WAIT_S), two.result(2 * WAIT_S)):
            assert "".join(chunk.text for chunk in answer) == SCRIPT[:20]


def test_one_request_is_drafted_ahead_while_it_is_verified() -> None:
    """Each verify waits until the call ahead is under way, and that call until the verify is."""
    meetings = [0]
    barrier = threading.Barrier(2)

    def met(request: StepRequest) -> None:
        barrier.wait(WAIT_S)
        meetings[0] += 1

    def target(request: StepRequest) -> StepResult:
        left = 20 - (len(request.input_ids) - len(PROMPT)) - len(request.draft_ids) - 2
        if request.draft_ids and left > 0:
            met(request)
        return FOLLOWS(request)

    def draft(request: StepRequest) -> StepResult:
        if "/ahead/" in request.request_id:
            met(request)
        return drafted(request)

    models = Threaded(draft), Threaded(target)
    rig = make_rig(SCRIPT, drafter=ModelDrafter(models[0], make_manifest(), WAIT_S), draft_ahead=True)
    rig.orchestrator._verifier._step_model = models[1]  # type: ignore[attr-defined]
    outcome = run(rig)
    assert outcome.text == SCRIPT[:20]
    assert meetings[0] == 2 * outcome.statistics.drafts_ahead > 0 == outcome.statistics.draft_failures
    for model in models:
        model.close()
