"""A scripted step model and a scripted orchestrator, loaded by Triton's stubs through the factory parameters."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

import numpy as np

from pipeline.engine.step import KvUse, StepModel, StepRequest, StepResult
from pipeline.errors import EngineError, StepError, StepTimeoutError
from pipeline.orchestrator.recorder import LoopState, NoRecorder, Recorder
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.orchestrator.statistics import RoundRecord, StatisticsCollector
from pipeline.spec import DeploymentSpec

HANG, FAIL, CRASH, SLOW = 900, 901, 902, 903  # as first input token
VOCAB = 49152
END_ID = 2


class ScriptedStepModel(StepModel):
    """Counts upwards: the next token is the last one plus 1. Drafts are kept while they do the same."""

    def __init__(self) -> None:
        self.running: dict[str, Future[StepResult]] = {}

    def submit(self, request: StepRequest) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        command = request.input_ids[0]
        if command == HANG:
            self.running[request.request_id] = future
        elif command == FAIL:
            future.set_exception(StepError(f"scripted failure of {request.request_id}"))
        elif command == CRASH:
            os._exit(3)
        elif command == SLOW:
            threading.Timer(0.3, future.set_result, (self._result(request),)).start()
        else:
            future.set_result(self._result(request))
        return future

    def stop(self, request_id: str) -> None:
        future = self.running.pop(request_id, None)
        if future is not None:
            future.set_result(StepResult(output_ids=(7,)))

    def close(self) -> None:
        for future in self.running.values():
            future.set_exception(StepError("closed"))

    @staticmethod
    def _result(request: StepRequest) -> StepResult:
        right = [request.input_ids[-1] + 1 + i for i in range(request.max_new_tokens)]
        accepted = 0
        for draft, token in zip(request.draft_ids, right, strict=False):
            if draft != token:
                break
            accepted += 1
        new = right[: accepted + 1] if request.draft_ids else right
        logits = np.zeros((len(new), VOCAB), np.float32) if request.return_logits else None
        if request.draft_logits is not None:
            assert request.draft_logits.shape == (len(request.draft_ids), VOCAB)
        return StepResult(
            tuple(new),
            total_draft_tokens=len(request.draft_ids),
            total_accepted_draft_tokens=accepted,
            generation_logits=logits,
            kv=KvUse(1, 2, 3, reused_tokens=len(request.input_ids) - 1, computed_tokens=len(new)),
            compute_s=0.25,
        )


def step_model(folder: Path, threads: int) -> StepModel:
    if (folder / "broken").exists():
        raise EngineError(f"engine file {folder / 'weights'} is damaged; run `make engines` again")
    return ScriptedStepModel()


class ScriptedOrchestrator:
    """Understands a few commands in text_input: "<command> <number>"."""

    def __init__(self, spec: DeploymentSpec, target: StepModel, draft: StepModel | None) -> None:
        self._target = target
        self._draft = draft
        self._deadline_s = spec.deadlines.target_s
        self.recorder: Recorder = NoRecorder()

    def state(self) -> LoopState:
        return LoopState(0, 0, True)

    def close(self) -> None:
        pass

    def generate(self, request: GenerationRequest, is_cancelled: Callable[[], bool]) -> Iterator[Chunk]:
        command, _, number = request.text_input.partition(" ")
        collector = StatisticsCollector(prompt_tokens=2, rule="token", seed=request.seed or 0, reproducible=True)
        pieces: list[str] = []
        if command in ("call", "bench", "stop"):
            pieces.append(getattr(self, f"_{command}")(number))
        else:
            for index in range(request.max_tokens):
                if is_cancelled():
                    Path(os.environ["SCRIPTED_FLAGS"], f"cancelled-{number}").touch()
                    yield Chunk("", finish_reason="cancelled")
                    return
                if command == "fail" and index == int(number):
                    raise StepError("scripted failure of the target")
                if command == "slow":
                    time.sleep(0.05)
                ids = self._target.submit(_request(index + 10)).result(10).output_ids
                record = RoundRecord(index, "model", "scripted", drafted=4, accepted=2, committed=3)
                collector.add(record)
                pieces.append(f"{ids[0]} ")
                if request.stream:
                    yield Chunk(pieces.pop(), ids, record if request.return_perf_metrics else None)
        statistics = collector.finish("length", first_token_s=0.1, total_s=0.2)
        yield Chunk("".join(pieces), finish_reason="length", statistics=statistics)

    def _call(self, number: str) -> str:
        """One call of the target, waited for as the real loop does."""
        future = self._target.submit(_request(int(number)))
        try:
            return str(future.result(self._deadline_s).output_ids)
        except (FutureTimeoutError, TimeoutError):
            time.sleep(0.01)
            raise StepTimeoutError(f"no answer; {self._target.abandoned} abandoned") from None

    def _stop(self, number: str) -> str:
        """A call that hangs until it is stopped."""
        future = self._target.submit(_request(HANG, request_id="to-be-stopped"))
        while True:
            self._target.stop("to-be-stopped")
            try:
                return str(future.result(0.05).output_ids)
            except (FutureTimeoutError, TimeoutError):
                continue

    def _bench(self, number: str) -> str:
        drafts = int(number)
        logits = np.zeros((drafts, VOCAB), np.float32) if drafts else None
        times = []
        for index in range(220):
            request = _request(10, tuple(range(11, 11 + drafts)), logits, request_id=f"bench-{index}")
            started = time.perf_counter()
            result = self._target.submit(request).result(10)
            times.append(time.perf_counter() - started)
            assert result.total_accepted_draft_tokens == drafts and result.compute_s == 0.25
        times = sorted(times[20:])
        return f"{times[0] * 1e6:.0f} {times[len(times) // 2] * 1e6:.0f} {times[-10] * 1e6:.0f}"


def _request(
    first: int,
    drafts: tuple[int, ...] = (),
    logits: np.ndarray | None = None,
    request_id: str = "call",
) -> StepRequest:
    return StepRequest(
        request_id=request_id,
        input_ids=(first,),
        max_new_tokens=len(drafts) + 1,
        draft_ids=drafts,
        draft_logits=logits,
    )


def orchestrator(
    spec: DeploymentSpec, engines_dir: Path, target: StepModel, draft: StepModel | None
) -> ScriptedOrchestrator:
    return ScriptedOrchestrator(spec, target, draft)
