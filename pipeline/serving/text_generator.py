"""What `spec_decode` serves: anything that answers requests in chunks, by default the real loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from pipeline.engine.manifest import Manifest
from pipeline.engine.step import StepModel
from pipeline.orchestrator.recorder import LoopState, Recorder
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.serving.contract import DRAFT_MODEL, TARGET_MODEL
from pipeline.spec import DeploymentSpec


class TextGenerator(Protocol):
    """What the server needs of an orchestrator; `pipeline.orchestrator.loop.Orchestrator` has this shape."""

    recorder: Recorder

    def state(self) -> LoopState:
        """How busy it is."""

    def generate(self, request: GenerationRequest, is_cancelled: Callable[[], bool]) -> Iterator[Chunk]:
        """Chunks of num_return_sequences answers, the last of each is `final`. Without `stream` one chunk each.

        Raises:
            SpecDecodeError: from any `next`; the request ends with it.
        """

    def close(self) -> None:
        """Nothing will be asked any more."""


def build_orchestrator(
    spec: DeploymentSpec, engines_dir: Path, target: StepModel, draft: StepModel | None
) -> TextGenerator:
    """The default `orchestrator_factory`: the real loop over two step models.

    Args:
        spec: the deployment.
        engines_dir: holds target/ and draft/: manifests and the tokenizer, which are read here too.
        target: the target's step model.
        draft: the draft's, or None.

    Raises:
        EngineError: an engine folder is missing or damaged.
    """
    # Lazily: tests serve other orchestrators, and importing this one costs seconds.
    from pipeline.orchestrator.setup import make_orchestrator
    from pipeline.orchestrator.switch import SWITCH_NAME
    from pipeline.text.tokenizer import Tokenizer

    target_dir = engines_dir / TARGET_MODEL
    return make_orchestrator(
        spec,
        Tokenizer.load(target_dir),
        target,
        Manifest.read(target_dir),
        draft,
        None if draft is None else Manifest.read(engines_dir / DRAFT_MODEL),
        engines_dir / SWITCH_NAME,
    )
