"""The whole pipeline in one process, without Triton."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.engine.embedded import load_step_model
from pipeline.engine.fit import read_engine_manifest
from pipeline.engine.step import StepModel
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.setup import make_orchestrator
from pipeline.spec import DeploymentSpec
from pipeline.text.tokenizer import Tokenizer


@contextmanager
def local_orchestrator(spec: DeploymentSpec) -> Iterator[Orchestrator]:
    """Load both engines of a spec here and join them.

    Raises:
        EngineError: an engine is missing or damaged, or of a kind that cannot run here.
    """
    spec.require_available_engine()
    models: list[StepModel] = []
    try:
        target_manifest = read_engine_manifest(spec, "target")
        draft_manifest = read_engine_manifest(spec, "draft") if spec.draft.uses_model else None
        target = load_step_model(spec.engine_dir("target"), spec.target.threads)
        models.append(target)
        draft = None
        if draft_manifest is not None:
            draft = load_step_model(spec.engine_dir("draft"), spec.draft.threads)
            models.append(draft)
        tokenizer = Tokenizer.load(spec.engine_dir("target"))
        yield make_orchestrator(spec, tokenizer, target, target_manifest, draft, draft_manifest)
    finally:
        for model in models:
            model.close()
