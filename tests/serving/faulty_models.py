"""The alphabet loop with faults that a prompt asks for, "<role>:<fault> <letter>": no other request sees them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipeline.engine.step import KvBlocks, StepModel, StepRequest, StepResult
from pipeline.errors import StepError
from pipeline.orchestrator import draft_health
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.setup import make_orchestrator
from pipeline.spec import DeploymentSpec
from tests.orchestrator.byte_tokenizer import END, ByteTokenizer
from tests.orchestrator.scripted import make_manifest
from tests.serving.real_loop import LONG, Alphabet

VOCAB = END + 1
LIMITS = LONG.model_copy(update={"kv_blocks": 64, "tokens_per_block": 8})
POOL_TOKENS = LIMITS.kv_tokens
BIG = 200  # max_tokens of a request of which two fill the pool
CRAWL_S = 0.4  # per call: a stream that is still there when a busy machine has looked at everything
PAUSE_S = 0.2  # a failed draft rests for so long
OWN, OTHER = 0.0, -1e9  # log laws that are certain of one token


class Faulty(Alphabet):
    """Holds calls until they are stopped, fails them, or spoils their answers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._role = folder.name
        self._held: dict[str, Future[StepResult]] = {}

    def submit(self, request: StepRequest) -> Future[StepResult]:
        fault = self._fault(request)
        if not fault:
            return super().submit(request)
        future: Future[StepResult] = Future()
        if fault.startswith("hold") and self._holds(fault, request):
            self._held[request.request_id] = future
        elif fault == "crawl":
            threading.Timer(CRAWL_S, future.set_result, (self._answer(request),)).start()
        elif fault == "error":
            future.set_exception(StepError("scripted failure"))
        else:
            future.set_result(_spoilt(self._answer(request), fault))
        return future

    def stop(self, request_id: str) -> None:
        future = self._held.pop(request_id, None)
        if future is not None:
            future.set_exception(StepError("stopped"))

    def kv_blocks(self) -> KvBlocks:
        """A block for every call that has not ended."""
        return KvBlocks(free=LIMITS.kv_blocks - len(self._held), cached=0, used=len(self._held))

    def _fault(self, request: StepRequest) -> str:
        role, _, fault = bytes(token for token in request.input_ids if token < END).partition(b" ")[0].partition(b":")
        return fault.decode() if role.decode(errors="replace") == self._role else ""

    @staticmethod
    def _holds(fault: str, request: StepRequest) -> bool:
        first = request.request_id.endswith("/0")
        return {"hold": True, "hold-first": first, "hold-verify": bool(request.draft_ids)}[fault]

    def _answer(self, request: StepRequest) -> StepResult:
        result = super()._answer(request)
        count = len(result.output_ids)
        if request.return_logits:
            laws = np.full((count, VOCAB), OTHER, np.float32)
            laws[np.arange(count), list(result.output_ids)] = OWN
            result = replace(result, generation_logits=laws)
        return replace(result, log_probs=(0.0,) * count) if request.return_log_probs else result


def _spoilt(result: StepResult, fault: str) -> StepResult:
    count, laws = len(result.output_ids), result.generation_logits
    if fault == "ids":
        return replace(result, output_ids=(VOCAB + 5,) * count)
    if fault == "negative":
        return replace(result, output_ids=(-5,) * count)
    if fault == "nan":
        laws = None if laws is None else np.full_like(laws, np.nan)
        return replace(result, generation_logits=laws, log_probs=(float("nan"),) * len(result.log_probs))
    if fault == "impossible":
        return replace(result, generation_logits=None if laws is None else np.roll(laws, 1, axis=1))
    return result


def step_model(folder: Path, threads: int) -> StepModel:
    return Faulty(folder)


def orchestrator(spec: DeploymentSpec, engines_dir: Path, target: StepModel, draft: StepModel | None) -> Orchestrator:
    draft_health.FIRST_PAUSE_S = PAUSE_S
    manifest = make_manifest(limits=LIMITS)
    return make_orchestrator(spec, ByteTokenizer(), target, manifest, draft, manifest)  # type: ignore[arg-type]
