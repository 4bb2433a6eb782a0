"""The whole pipeline in one process, without Triton."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from pipeline.engine.embedded import load_step_model
from pipeline.engine.fit import read_engine_manifest
from pipeline.engine.manifest import Manifest
from pipeline.engine.step import StepModel
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.setup import make_orchestrator
from pipeline.spec import DeploymentSpec, Role
from pipeline.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class LocalModels:
    """Engines of this process."""

    target: StepModel
    target_manifest: Manifest
    draft: StepModel | None
    draft_manifest: Manifest | None
    tokenizer: Tokenizer

    def orchestrator(self, spec: DeploymentSpec) -> Orchestrator:
        """Join them; several orchestrators may share them, one after another. The caller closes it."""
        return make_orchestrator(
            spec, self.tokenizer, self.target, self.target_manifest, self.draft, self.draft_manifest
        )


@dataclass(frozen=True)
class LocalPipeline:
    """Engines of this process, joined."""

    orchestrator: Orchestrator
    target: StepModel
    tokenizer: Tokenizer


@contextmanager
def local_models(spec: DeploymentSpec) -> Iterator[LocalModels]:
    """Load both engines of a spec here; release them at the end.

    Raises:
        EngineError: an engine is missing or damaged, or of a kind that cannot run here.
    """
    spec.require_embedded()
    with ExitStack() as models:

        def load(role: Role) -> tuple[StepModel, Manifest]:
            manifest = read_engine_manifest(spec, role)
            model = load_step_model(spec.engine_dir(role), spec.step_model(role).threads)
            models.callback(model.close)
            return model, manifest

        target, manifest = load("target")
        draft, draft_manifest = load("draft") if spec.draft.uses_model else (None, None)
        tokenizer = Tokenizer.load(spec.engine_dir("target"))
        yield LocalModels(target, manifest, draft, draft_manifest, tokenizer)


@contextmanager
def local_pipeline(spec: DeploymentSpec) -> Iterator[LocalPipeline]:
    """Load both engines of a spec here and join them; release them at the end.

    Raises:
        EngineError: an engine is missing or damaged, or of a kind that cannot run here.
    """
    with local_models(spec) as models, closing(models.orchestrator(spec)) as orchestrator:
        yield LocalPipeline(orchestrator, models.target, models.tokenizer)


@contextmanager
def local_orchestrator(spec: DeploymentSpec) -> Iterator[Orchestrator]:
    """`local_pipeline` for those who need no more than its orchestrator."""
    with local_pipeline(spec) as pipeline:
        yield pipeline.orchestrator
