"""The whole pipeline in one process, without Triton."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.engine.embedded import load_step_model
from pipeline.engine.manifest import Manifest
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
        target_dir, draft_dir = spec.engine_dir("target"), spec.engine_dir("draft")
        target = load_step_model(target_dir, spec.target.threads)
        models.append(target)
        draft, draft_manifest = None, None
        if spec.draft.uses_model:
            draft = load_step_model(draft_dir, spec.draft.threads)
            models.append(draft)
            draft_manifest = Manifest.read(draft_dir)
        yield make_orchestrator(
            spec, Tokenizer.load(target_dir), target, Manifest.read(target_dir), draft, draft_manifest
        )
    finally:
        for model in models:
            model.close()
