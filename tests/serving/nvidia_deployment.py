"""A deployment on stand-ins for TensorRT-LLM engines, in this process or behind the real Triton.

Five tokens, a to d and the end token. The target's logits have 8 columns; the draft's 6, so that neither width nor
padding agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from pipeline.engine.manifest import CostTable, Limits, Manifest
from pipeline.engine.step import StepModel, StepRequest, StepResult
from pipeline.engine.tensorrt_capabilities import TENSORRT_LLM_CAPABILITIES
from pipeline.errors import SpecDecodeError
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.setup import make_orchestrator
from pipeline.serving.bls import BlsStepModel
from pipeline.serving.dialect import Dialect
from pipeline.spec import DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

from .fakes import InferenceResponse, Tensor, TritonError, Utils
from .nvidia_engine import Dice, Engine, EngineError, SeededDice
from .nvidia_triton import answer, config_text, received

END = 4
MAX_SEQ_LEN, MAX_DRAFT_LEN = 60, 4
TARGET = Engine(vocab=5, padded=8, seed=11, max_draft_len=MAX_DRAFT_LEN, max_seq_len=MAX_SEQ_LEN + MAX_DRAFT_LEN)
DRAFT = Engine(vocab=5, padded=6, seed=11, tilt=0.4, max_seq_len=MAX_SEQ_LEN)


class Letters:
    """Token t is the letter chr(97 + t); END has no text."""

    byte_fallback = False
    special_ids = frozenset({END})

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) - 97 for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(97 + token) for token in ids if token != END)

    def token(self, token_id: int) -> str | None:
        return chr(97 + token_id)


def manifest(role: str, engine: Engine) -> Manifest:
    """As the builder writes it for a TensorRT engine."""
    return Manifest.model_validate(
        {
            "version": 1,
            "role": role,
            "engine": "tensorrt_llm",
            "model": "stand-in",
            "source_sha256": "",
            "dtype": "float16",
            "vocab_size": engine.vocab,
            "padded_vocab_size": engine.padded,
            "engine_vocab_size": engine.vocab,
            "end_id": END,
            "files": {},
            "limits": Limits(
                max_seq_len=engine.max_seq_len - engine.max_draft_len,
                max_draft_len=engine.max_draft_len,
                max_requests=32,
                kv_blocks=512,
                tokens_per_block=32,
            ),
            "capabilities": TENSORRT_LLM_CAPABILITIES,
            "cost": CostTable(context_tokens=1, seconds_by_tokens={1: 0.001, 9: 0.0015}),
            "built_with": {},
        }
    )


def triton(engine: Engine, dice: Callable[[int], Dice] = SeededDice, calls: list[Any] | None = None) -> Utils:
    """`triton_python_backend_utils` whose calls end at the stand-in."""

    def execute(fields: dict[str, Any]) -> InferenceResponse:
        if calls is not None:
            calls.append(fields)
        tensors = {tensor.name(): tensor.as_numpy() for tensor in fields["inputs"]}
        try:
            found = answer(engine, received(tensors), fields["requested_output_names"], dice)
        except EngineError as error:
            return InferenceResponse(error=TritonError(str(error)))
        return InferenceResponse([Tensor(name, array) for name, array in found.items()])

    return Utils(execute)


class Direct(StepModel):
    """The BLS adapter without its threads."""

    def __init__(self, utils: Utils, dialect: Dialect) -> None:
        self._model = BlsStepModel("target", utils, max_calls=1, deadline_s=5.0, dialect=dialect)

    def submit(self, request: StepRequest) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        try:
            future.set_result(self._model.execute(request))
        except SpecDecodeError as error:
            future.set_exception(error)
        return future

    def stop(self, request_id: str) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Setting:
    """Engines, what their manifests say of them, and how drafts are made."""

    target: Engine = TARGET
    draft: Engine = DRAFT
    kind: str = "model"
    greedy_draft: bool = False
    k: int = 2
    target_dialect: Dialect | None = None  # None: as its manifest says; a planted bug says otherwise
    draft_dialect: Dialect | None = None

    def spec(self) -> DeploymentSpec:
        return DeploymentSpec.model_validate(
            {
                "name": "nvidia",
                "target": {"model": "t"},
                "draft": {
                    "kind": self.kind,
                    "model": "d",
                    "sampling": "greedy" if self.greedy_draft else "q",
                    "ngram": {"min_match": 1},
                },
                "controller": {"kind": "fixed", "k": self.k},
                "limits": {"max_seq_len": MAX_SEQ_LEN, "max_draft_len": MAX_DRAFT_LEN},
                "deadlines": {"target_s": 5.0, "draft_s": 5.0},
            }
        )

    def models(self, dice: Callable[[int], Dice] = SeededDice) -> tuple[StepModel, StepModel]:
        target = self.target_dialect or Dialect.of(manifest("target", self.target))
        draft = self.draft_dialect or Dialect.of(manifest("draft", self.draft))
        return Direct(triton(self.target, dice), target), Direct(triton(self.draft, dice), draft)

    def orchestrator(self) -> Orchestrator:
        return join(self.spec(), *self.models(), manifest("target", self.target), manifest("draft", self.draft))


def join(
    spec: DeploymentSpec, target: StepModel, draft: StepModel | None, target_facts: Manifest, draft_facts: Manifest
) -> Orchestrator:
    facts = None if draft is None else draft_facts
    return make_orchestrator(spec, cast(Tokenizer, Letters()), target, target_facts, draft, facts)


def orchestrator(spec: DeploymentSpec, engines_dir: Path, target: StepModel, draft: StepModel | None) -> Orchestrator:
    """The factory that a served `spec_decode` loads: the real loop, with letters for a tokenizer."""
    return join(spec, target, draft, Manifest.read(engines_dir / "target"), Manifest.read(engines_dir / "draft"))


MODEL = """import os, sys
sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
from serving.nvidia_triton import TritonPythonModel
"""


def write_stand_ins(setting: Setting, engines_dir: Path, repository: Path) -> None:
    """Manifests, and NVIDIA's models in place of the rendered step models."""
    for role, engine in (("target", setting.target), ("draft", setting.draft)):
        manifest(role, engine).write(engines_dir / role)
        folder = repository / role
        (folder / "config.pbtxt").write_text(config_text(role, {"engine": json.dumps(asdict(engine))}))
        (folder / "1" / "model.py").write_text(MODEL)


def other(engine: Engine, **changes: Any) -> Engine:
    return replace(engine, **changes)
