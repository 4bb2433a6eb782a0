"""The real loop between scripted step models, loaded by Triton's stubs: the alphabet, drafted wrong now and then."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

from pipeline.engine.step import KvBlocks, KvUse, StepModel, StepRequest, StepResult
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.setup import make_orchestrator
from pipeline.spec import DeploymentSpec
from tests.orchestrator.byte_tokenizer import ByteTokenizer
from tests.orchestrator.scripted import LIMITS, make_manifest

SLOW = "s"  # first letter of a prompt whose calls take their time
SLOW_S = 0.02
WRONG = ord("?")
HARD = frozenset(b"ekz")  # letters that the draft gets wrong
KV = KvUse(alloc_new_blocks=1, reused_blocks=2, alloc_total_blocks=3)
HANG_FLAG = "hang"  # in an engine's folder: the process that sees it answers nothing any more
LONG = LIMITS.model_copy(update={"max_seq_len": 2000, "max_requests": 32, "kv_blocks": 8192})


def after(token: int) -> int:
    """The letter that follows a token."""
    return token + 1 if ord("a") <= token < ord("z") else ord("a")


def text(prompt: str, count: int) -> str:
    """What the target says."""
    found, last = [], prompt.encode()[-1]
    for _ in range(count):
        last = after(last)
        found.append(last)
    return bytes(found).decode()


class Alphabet(StepModel):
    """Target or draft, by the folder that it is loaded from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._drafts = folder.name == "draft"
        self._hangs = False

    def submit(self, request: StepRequest) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        flag = self._folder / HANG_FLAG
        if flag.exists():
            flag.unlink()
            self._hangs = True
        if self._hangs:
            return future
        result = self._answer(request)
        if request.input_ids[0] == ord(SLOW):
            threading.Timer(SLOW_S, future.set_result, (result,)).start()
        else:
            future.set_result(result)
        return future

    def stop(self, request_id: str) -> None: ...

    def close(self) -> None: ...

    def kv_blocks(self) -> KvBlocks:
        return KvBlocks(free=60, cached=3, used=1)

    def _answer(self, request: StepRequest) -> StepResult:
        last, output = request.input_ids[-1], []
        for i in range(request.max_new_tokens):
            last = after(last)
            output.append(WRONG if self._drafts and last in HARD else last)
            if request.draft_ids and (i == len(request.draft_ids) or request.draft_ids[i] != output[-1]):
                break
        drafted = len(request.draft_ids)
        return StepResult(tuple(output), drafted, len(output) - 1 if drafted else 0, kv=KV)


def step_model(folder: Path, threads: int) -> StepModel:
    return Alphabet(folder)


def orchestrator(spec: DeploymentSpec, engines_dir: Path, target: StepModel, draft: StepModel | None) -> Orchestrator:
    manifest = make_manifest(limits=LONG)
    return make_orchestrator(spec, ByteTokenizer(), target, manifest, draft, manifest)  # type: ignore[arg-type]
