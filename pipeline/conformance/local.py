"""A deployment in this process, without Triton."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.client.ask import local_replies
from pipeline.client.local import local_pipeline
from pipeline.conformance.deployment import Answer, Deployment, Ids, TextCodec, join
from pipeline.engine.step import FloatArray, StepModel, StepRequest
from pipeline.errors import StepError
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.spec import DeploymentSpec


class LocalDeployment(Deployment):
    """Runs the orchestrator of this process.

    Args:
        name: for the report.
        orchestrator: answers.
        target: gives scores.
        tokenizer: the target's.
        timeout_s: longest wait for scores.
    """

    def __init__(
        self, name: str, orchestrator: Orchestrator, target: StepModel, tokenizer: TextCodec, timeout_s: float = 300.0
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self._orchestrator = orchestrator
        self._target = target
        self._timeout_s = timeout_s

    def ask(self, request: GenerationRequest) -> Answer:
        return join(local_replies(self._orchestrator, request))

    def next_scores(self, prefix: Ids, sampling: SamplingParams) -> FloatArray:
        request = StepRequest(f"scores-{uuid.uuid4().hex}", prefix, 1, sampling=sampling, return_logits=True)
        result = self._target.submit(request).result(self._timeout_s)
        if result.generation_logits is None:
            raise StepError("the target gives no generation_logits")
        scores: FloatArray = result.generation_logits.reshape(-1)
        return scores


@contextmanager
def local_deployment(spec: DeploymentSpec) -> Iterator[LocalDeployment]:
    """Load both engines of a spec here; release them at the end.

    Raises:
        EngineError: an engine is missing or damaged, or of a kind that cannot run here.
    """
    with local_pipeline(spec) as local:
        yield LocalDeployment(f"{spec.name} in process", local.orchestrator, local.target, local.tokenizer)
