"""The model.py logic of `spec_decode`: requests onto worker threads, chunks out by the response sender."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pipeline.engine.manifest import MANIFEST_NAME, Manifest
from pipeline.engine.step import StepModel
from pipeline.errors import CancelledError, OverloadedError, SpecDecodeError
from pipeline.metrics import catalogue as metrics
from pipeline.metrics.tally import Tally
from pipeline.orchestrator.recorder import LoopState, NoRecorder, Recorder, TallyRecorder
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.serving.answer import Answer
from pipeline.serving.backend import (
    ModelArguments,
    backend_utils,
    error_text,
    load_factory,
    read_inputs,
    read_parameters,
)
from pipeline.serving.bls import BlsStepModel
from pipeline.serving.contract import DRAFT_MODEL, TARGET_MODEL
from pipeline.serving.dialect import OWN, Dialect
from pipeline.serving.generation import decode_generation, encode_chunk, encode_chunks
from pipeline.serving.metrics import Gauge, MetricsExporter
from pipeline.serving.otlp import Tracer
from pipeline.serving.process_watch import ProcessWatch
from pipeline.serving.request_log import OFF, RequestLog
from pipeline.serving.workers import WorkerPool
from pipeline.spec import DeploymentSpec
from pipeline.tracing.request_spans import RequestSpans

OUTBOX_THREADS = 4
SPEC_FILE = "deployment.json"
DEFAULT_ORCHESTRATOR_FACTORY = "pipeline.serving.orchestrator_server:build_orchestrator"


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


def _dialect(folder: Path) -> Dialect:
    """Of the engine in a folder. Without a manifest it is a step model of another factory, and speaks ours."""
    return Dialect.of(Manifest.read(folder)) if (folder / MANIFEST_NAME).is_file() else OWN


class OrchestratorServer:
    """Runs one request per worker thread.

    Args:
        generator: the orchestrator.
        utils: `triton_python_backend_utils`.
        max_requests: requests that run at once.
        max_queue: requests that may wait beyond those; a further one is refused with UNAVAILABLE.
        step_models: closed with the server, by name.
        recorder: told how requests end.
        log: takes a line for each.
        tracer: makes spans of those that Triton traces; None: of none.
    """

    def __init__(
        self,
        generator: TextGenerator,
        utils: Any,
        *,
        max_requests: int,
        max_queue: int,
        step_models: Mapping[str, BlsStepModel] | None = None,
        recorder: Recorder | None = None,
        log: RequestLog | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._generator = generator
        self._utils = utils
        self._step_models = step_models or {}
        self._recorder = recorder or NoRecorder()
        self._log = log or RequestLog(utils, OFF)
        self._tracer = tracer
        self._exporter: MetricsExporter | None = None
        self._watch: ProcessWatch | None = None
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

        engines_dir = Path(arguments.parameter("engines_dir"))

        def connect(name: str, deadline_s: float) -> BlsStepModel:
            return BlsStepModel(
                name,
                utils,
                max_calls=spec.limits.max_requests * (spec.draft_calls if name == DRAFT_MODEL else 1),
                deadline_s=deadline_s,
                dialect=_dialect(engines_dir / name),
            )

        target = connect(TARGET_MODEL, spec.deadlines.target_s)
        draft = connect(DRAFT_MODEL, spec.deadlines.draft_s) if spec.draft.uses_model else None
        factory = load_factory(arguments.parameters.get("orchestrator_factory", DEFAULT_ORCHESTRATOR_FACTORY))
        generator: TextGenerator = factory(spec, engines_dir, target, draft)
        tally = Tally()
        generator.recorder = TallyRecorder(tally)
        server = cls(
            generator,
            utils,
            max_requests=spec.limits.max_requests,
            max_queue=spec.limits.max_queue,
            step_models={TARGET_MODEL: target, **({} if draft is None else {DRAFT_MODEL: draft})},
            recorder=generator.recorder,
            log=RequestLog.from_environment(utils),
            tracer=Tracer.of(spec),
        )
        server._exporter = MetricsExporter(utils, metrics.ORCHESTRATOR_METRICS, tally, server.gauges)
        if spec.engine == "embedded":  # other engines run inside tritonserver itself
            server._watch = ProcessWatch(server._step_models, os.getppid())
        return server

    def execute(self, requests: Sequence[Any]) -> None:
        """Enqueue requests; returns None, as a decoupled model must."""
        arrived = time.perf_counter()
        if self._exporter is not None:
            self._exporter.start()
        for request in requests:
            answer = Answer(self._utils, request.get_response_sender(), self._outbox)
            try:
                self._pool.submit(partial(self._run, request, answer, arrived))
            except OverloadedError as error:
                self._fail(request, answer, error)

    def gauges(self) -> list[Gauge]:
        """The values of all gauges now."""
        state = self._generator.state()
        return [
            (metrics.RUNNING, (), state.running),
            (metrics.WAITING, (), self._pool.waiting + state.waiting),
            (metrics.DRAFT_USABLE, (), float(state.draft_usable)),
            *((metrics.ABANDONED, (name,), model.abandoned) for name, model in self._step_models.items()),
        ]

    def close(self) -> None:
        """Refuse what waits; running requests end by their own deadlines."""
        self._stopping = True
        for job in [*self._pool.close(), *self._outbox.close()]:
            job()
        if self._watch is not None:
            self._watch.close()
        self._generator.close()
        for model in self._step_models.values():
            model.close()
        self._log.close()
        if self._tracer is not None:
            self._tracer.close()
        if self._exporter is not None:
            self._exporter.close()

    def _run(self, request: Any, answer: Answer, arrived: float) -> None:
        spans: RequestSpans | None = None
        try:
            if self._tracer is not None:
                spans = self._tracer.start(request, time.perf_counter() - arrived)
            if self._stopping:
                raise OverloadedError("the server is stopping")
            if answer.was_withdrawn():
                raise CancelledError("the client withdrew the request while it waited")
            wanted = decode_generation(read_inputs(request), read_parameters(request), request.request_id())
            on_round = None if spans is None else spans.round_ended
            wanted = replace(wanted, waited_s=time.perf_counter() - arrived, on_round=on_round)
            self._answer(wanted, answer, spans)
        except BaseException as error:
            self._fail(request, answer, error)
            if spans is not None:
                spans.ended(error_text(error))

    def _fail(self, request: Any, answer: Answer, error: BaseException) -> None:
        self._log.failed(request.request_id(), error)
        self._recorder.request_failed(error.code if isinstance(error, SpecDecodeError) else SpecDecodeError.code)
        answer.fail(error)

    def _answer(self, wanted: GenerationRequest, answer: Answer, spans: RequestSpans | None) -> None:
        """Chunks as they come where the request streams; else all answers in one response."""
        ended = 0
        whole: list[Chunk] = []
        for chunk in self._generator.generate(wanted, answer.is_cancelled):
            ended += chunk.final
            if chunk.statistics is not None:
                self._recorder.answer_ended(chunk.statistics)
                if spans is not None:
                    spans.answer_ended(chunk.statistics)
                self._log.ended(wanted.request_id, chunk.sequence_index, wanted.waited_s, chunk.statistics)
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
        if spans is not None:
            spans.ended()
