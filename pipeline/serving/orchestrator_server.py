"""The model.py logic of `spec_decode`: requests onto worker threads, chunks out by the response sender."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pipeline.engine.step import StepModel
from pipeline.errors import CancelledError, OverloadedError, SpecDecodeError
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.serving.answer import Answer
from pipeline.serving.backend import (
    ModelArguments,
    backend_utils,
    load_factory,
    read_inputs,
    read_parameters,
)
from pipeline.serving.bls import BlsStepModel
from pipeline.serving.contract import DRAFT_MODEL, TARGET_MODEL
from pipeline.serving.generation import decode_generation, encode_chunk, encode_chunks
from pipeline.serving.workers import WorkerPool
from pipeline.spec import DeploymentSpec

OUTBOX_THREADS = 4
SPEC_FILE = "deployment.json"
DEFAULT_ORCHESTRATOR_FACTORY = "pipeline.serving.orchestrator_server:build_orchestrator"


class TextGenerator(Protocol):
    """What the server needs of an orchestrator; `pipeline.orchestrator.loop.Orchestrator` has this shape."""

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
    from pipeline.engine.manifest import Manifest
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


class OrchestratorServer:
    """Runs one request per worker thread.

    Args:
        generator: the orchestrator.
        utils: `triton_python_backend_utils`.
        max_requests: requests that run at once.
        max_queue: requests that may wait beyond those; a further one is refused with UNAVAILABLE.
        step_models: closed with the server.
    """

    def __init__(
        self,
        generator: TextGenerator,
        utils: Any,
        *,
        max_requests: int,
        max_queue: int,
        step_models: Sequence[StepModel] = (),
    ) -> None:
        self._generator = generator
        self._utils = utils
        self._step_models = step_models
        self._pool = WorkerPool("request", max_requests, max_queue)
        self._outbox = WorkerPool("outbox", OUTBOX_THREADS)
        self._stopping = False

    @classmethod
    def from_triton(cls, args: Mapping[str, str]) -> OrchestratorServer:
        """Build the orchestrator over the step models that config.pbtxt names.

        Raises:
            EngineError: a parameter is missing, or the factory cannot be loaded.
        """
        utils = backend_utils()
        arguments = ModelArguments.from_triton(args)
        spec = DeploymentSpec.model_validate_json((arguments.version_dir / SPEC_FILE).read_text())

        def connect(name: str, deadline_s: float) -> BlsStepModel:
            return BlsStepModel(
                name,
                utils,
                max_calls=spec.limits.max_requests,  # a request has at most one call in flight
                deadline_s=deadline_s,
                step_stats=arguments.parameters.get("step_stats", "true") == "true",
            )

        target = connect(TARGET_MODEL, spec.deadlines.target_s)
        draft = connect(DRAFT_MODEL, spec.deadlines.draft_s) if spec.draft.uses_model else None
        factory = load_factory(arguments.parameters.get("orchestrator_factory", DEFAULT_ORCHESTRATOR_FACTORY))
        engines_dir = Path(arguments.parameter("engines_dir"))
        return cls(
            factory(spec, engines_dir, target, draft),
            utils,
            max_requests=spec.limits.max_requests,
            max_queue=spec.limits.max_queue,
            step_models=[model for model in (target, draft) if model is not None],
        )

    def execute(self, requests: Sequence[Any]) -> None:
        """Enqueue requests; returns None, as a decoupled model must."""
        for request in requests:
            answer = Answer(self._utils, request.get_response_sender(), self._outbox)
            try:
                self._pool.submit(partial(self._run, request, answer))
            except OverloadedError as error:
                answer.fail(error)

    def close(self) -> None:
        """Refuse what waits; running requests end by their own deadlines."""
        self._stopping = True
        for job in [*self._pool.close(), *self._outbox.close()]:
            job()
        self._generator.close()
        for model in self._step_models:
            model.close()

    def _run(self, request: Any, answer: Answer) -> None:
        try:
            if self._stopping:
                raise OverloadedError("the server is stopping")
            if answer.was_withdrawn():
                raise CancelledError("the client withdrew the request while it waited")
            wanted = decode_generation(read_inputs(request), read_parameters(request), request.request_id())
            self._answer(wanted, answer)
        except BaseException as error:
            answer.fail(error)

    def _answer(self, wanted: GenerationRequest, answer: Answer) -> None:
        """Chunks as they come where the request streams; else all answers in one response."""
        ended = 0
        whole: list[Chunk] = []
        for chunk in self._generator.generate(wanted, answer.is_cancelled):
            ended += chunk.final
            if wanted.stream:
                answer.send(encode_chunk(chunk), final=ended == wanted.num_return_sequences)
            elif not chunk.final:
                raise SpecDecodeError("the orchestrator sent more than one chunk to a request without stream")
            else:
                whole.append(chunk)
        if ended != wanted.num_return_sequences:
            raise SpecDecodeError("the orchestrator ended without a final chunk")
        if whole:
            answer.send(encode_chunks(whole), final=True)
