"""The model.py logic of `spec_decode`: requests onto worker threads, chunks out by the response sender.

`execute` only enqueues, so that Triton's own queue is always empty and its policies would find nobody to act on (and a
python model is not told a request's priority): the line, its order and its bounds are here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.engine.manifest import MANIFEST_NAME, Manifest
from pipeline.errors import CancelledError, OverloadedError, RequestTimeoutError, SpecDecodeError
from pipeline.metrics import catalogue as metrics
from pipeline.metrics.tally import Tally
from pipeline.orchestrator.lifeline import Lifeline
from pipeline.orchestrator.recorder import OWN_TIMEOUT, NoRecorder, Recorder, TallyRecorder
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.queue_spec import QueueSpec
from pipeline.serving.answer import Answer
from pipeline.serving.backend import (
    ModelArguments,
    backend_utils,
    error_text,
    load_factory,
    read_inputs,
    read_parameters,
    read_timeout,
    usual_stacks,
)
from pipeline.serving.bls import BlsStepModel
from pipeline.serving.contract import DRAFT_MODEL, TARGET_MODEL
from pipeline.serving.dialect import OWN, Dialect
from pipeline.serving.generation import decode_generation, encode_chunk, encode_chunks, priority_of, timeout_of
from pipeline.serving.metrics import Gauge, MetricsExporter
from pipeline.serving.otlp import Tracer
from pipeline.serving.process_watch import ProcessWatch
from pipeline.serving.request_log import OFF, RequestLog
from pipeline.serving.text_generator import TextGenerator
from pipeline.serving.waiting_line import WaitingJob, WaitingLine
from pipeline.serving.workers import WorkerPool
from pipeline.spec import DeploymentSpec
from pipeline.tracing.request_spans import RequestSpans

OUTBOX_THREADS = 4
SPEC_FILE = "deployment.json"
DEFAULT_ORCHESTRATOR_FACTORY = "pipeline.serving.text_generator:build_orchestrator"


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
        queue: in which order they wait, and for how long.
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
        queue: QueueSpec | None = None,
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
        self.queue = queue or QueueSpec()
        self._pool = WorkerPool("request", max_requests, max_queue)
        self._line = WaitingLine(self._pool)
        self._outbox = WorkerPool("outbox", OUTBOX_THREADS)
        self._stopping = False

    @classmethod
    def from_triton(cls, args: Mapping[str, str]) -> OrchestratorServer:
        """Build the orchestrator over the step models that config.pbtxt names.

        Raises:
            EngineError: a parameter is missing, or the factory cannot be loaded.
        """
        usual_stacks()
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
            queue=spec.queue,
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
                turn = _Turn(self, request, answer, arrived)
                self._pool.submit(turn, self.queue.place(arrived, priority_of(turn.parameters)))
            except Exception as error:  # the others of the batch must have theirs, and this one its end
                self.fail(request, answer, error)

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
        self._line.close()
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

    def run(self, request: Any, parameters: Mapping[str, Any], answer: Answer, arrived: float) -> None:
        """Answer a request, in the thread whose turn it is."""
        spans: RequestSpans | None = None
        try:
            if self._tracer is not None:
                spans = self._tracer.start(request, time.perf_counter() - arrived)
            if self._stopping:
                raise OverloadedError("the server is stopping")
            if answer.was_withdrawn():
                raise CancelledError("the client withdrew the request while it waited")
            wanted = decode_generation(read_inputs(request), parameters, request.request_id())
            on_round = None if spans is None else spans.round_ended
            wanted = replace(wanted, waited_s=time.perf_counter() - arrived, on_round=on_round)
            self._answer(wanted, answer, spans)
        except BaseException as error:
            self.fail(request, answer, error)
            if spans is not None:
                spans.ended(error_text(error))

    def fail(self, request: Any, answer: Answer, error: BaseException) -> None:
        """End a request with an error, and say so."""
        self._log.failed(request.request_id(), error)
        code = error.code if isinstance(error, SpecDecodeError) else SpecDecodeError.code
        self._recorder.request_failed(OWN_TIMEOUT if isinstance(error, RequestTimeoutError) else code)
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


class _Turn(WaitingJob):
    """A request that waits for its thread, or has it.

    Raises:
        InvalidRequestError: how it wants to wait makes no sense.
    """

    def __init__(self, server: OrchestratorServer, request: Any, answer: Answer, arrived: float) -> None:
        self.parameters = {**read_parameters(request), **read_timeout(request)}
        self._server, self._request, self._answer, self._arrived = server, request, answer, arrived
        self._longest_s = server.queue.timeout_s
        self._lifeline = Lifeline(answer.is_cancelled, arrived, timeout_of(self.parameters))

    def __call__(self) -> None:
        self._server.run(self._request, self.parameters, self._answer, self._arrived)

    def check(self) -> None:
        self._lifeline.check_in_line(self._longest_s)

    def fail(self, error: SpecDecodeError) -> None:
        self._server.fail(self._request, self._answer, error)
