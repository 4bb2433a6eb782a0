"""The model.py logic of `target` and `draft`: a step model behind Triton's Python backend.

`execute` only enqueues. The engine batches what is waiting, and each call is answered by its own response
sender; the model is not decoupled, so every call gets exactly one response, with the FINAL flag on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.engine.step import StepModel, StepResult
from pipeline.errors import InvalidRequestError, StepError
from pipeline.metrics import catalogue as metrics
from pipeline.metrics.tally import Tally
from pipeline.serving.backend import (
    ModelArguments,
    backend_utils,
    load_factory,
    read_inputs,
    read_parameters,
    triton_error,
    usual_stacks,
)
from pipeline.serving.contract import Tensors
from pipeline.serving.metrics import Gauge, MetricsExporter
from pipeline.serving.request_tensors import StepCall, decode_request, is_stop
from pipeline.serving.result_tensors import encode_result, encode_stopped
from pipeline.serving.sampling_tensors import named_as_tensor
from pipeline.serving.workers import WorkerPool

DEFAULT_STEP_MODEL_FACTORY = "pipeline.engine.embedded:load_step_model"
_CLOSE_S = 2.0


class StepServer:
    """Answers Triton requests with a StepModel.

    Args:
        model: the engine.
        utils: `triton_python_backend_utils`.
        name: of the Triton model; None counts nothing.
    """

    def __init__(self, model: StepModel, utils: Any, name: str | None = None) -> None:
        self._model = model
        self._tally = Tally()
        self._labels = (name or "",)
        self._exporter = (
            None if name is None else MetricsExporter(utils, metrics.STEP_METRICS, self._tally, self.gauges)
        )
        self._utils = utils
        self._senders = WorkerPool("respond", 2)
        self._open = 0
        self._all_answered = threading.Condition()

    @classmethod
    def from_triton(cls, args: Mapping[str, str]) -> StepServer:
        """Load the engine that config.pbtxt names (`engine_dir`, `threads`, `step_model_factory`).

        Raises:
            EngineError: the engine is missing, damaged, or does not fit.
        """
        usual_stacks()
        arguments = ModelArguments.from_triton(args)
        factory = load_factory(arguments.parameters.get("step_model_factory", DEFAULT_STEP_MODEL_FACTORY))
        model = factory(Path(arguments.parameter("engine_dir")), int(arguments.parameter("threads")))
        return cls(model, backend_utils(), arguments.name)

    def execute(self, requests: Sequence[Any]) -> None:
        """Enqueue requests; returns None, which tells the backend that responses come by their senders."""
        if self._exporter is not None:
            self._exporter.start()
        for request in requests:
            sender = request.get_response_sender()
            with self._all_answered:
                self._open += 1
            try:
                self._start(request, sender)
            except Exception as error:
                self._answer(sender, error)

    def close(self) -> None:
        """End running calls with errors, and give their answers a moment to leave."""
        self._model.close()
        deadline = time.monotonic() + _CLOSE_S
        with self._all_answered:
            while self._open and time.monotonic() < deadline:
                self._all_answered.wait(0.1)
        self._senders.close()
        if self._exporter is not None:
            self._exporter.close()

    def gauges(self) -> list[Gauge]:
        """The state of the KV pool, where the engine tells."""
        blocks = self._model.kv_blocks()
        if blocks is None:
            return []
        states = {"free": blocks.free, "cached": blocks.cached, "used": blocks.used}
        return [(metrics.KV_BLOCKS, (*self._labels, state), count) for state, count in states.items()]

    def _start(self, request: Any, sender: Any) -> None:
        tensors = read_inputs(request)
        if is_stop(tensors):
            self._model.stop(request.request_id())
            self._answer(sender, encode_stopped())
            return
        call = decode_request(tensors, read_parameters(request), request.request_id())
        finish = partial(self._finish, sender, call, request.requested_output_names())
        self._model.submit(call.request).add_done_callback(partial(self._on_done, finish))

    def _on_done(self, finish: Callable[[Future[StepResult]], None], future: Future[StepResult]) -> None:
        # Sending costs an inter-process round trip: it holds up the engine's thread only where no other
        # call waits.
        if self._open == 1:
            finish(future)
        else:
            self._senders.submit(partial(finish, future))

    def _finish(self, sender: Any, call: StepCall, outputs: list[str], future: Future[StepResult]) -> None:
        answer: Tensors | BaseException
        try:
            result = future.result()
            if self._exporter is not None:
                self._tally.add(
                    (
                        (metrics.KV_REUSED, self._labels, result.kv.reused_blocks),
                        (metrics.KV_NEW, self._labels, result.kv.alloc_new_blocks),
                        (metrics.KV_PREEMPTIONS, self._labels, result.kv.preempted),
                    )
                )
            answer = encode_result(result, call, outputs)
        except FutureCancelledError:
            answer = StepError("the call was cancelled")
        except InvalidRequestError as error:
            answer = named_as_tensor(error)
        except BaseException as error:
            answer = error
        self._answer(sender, answer)

    def _answer(self, sender: Any, answer: Tensors | BaseException) -> None:
        utils = self._utils
        final = utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            if isinstance(answer, BaseException):
                response = utils.InferenceResponse(error=triton_error(utils, answer))
            else:
                tensors = [utils.Tensor(name, array) for name, array in answer.items()]
                response = utils.InferenceResponse(output_tensors=tensors)
            sender.send(response, flags=final)
        except Exception as error:
            # Without a FINAL flag the caller would wait for ever.
            utils.Logger.log_error(f"a response could not be sent: {error}")
            with suppress(Exception):  # a sender that counts itself closed refuses
                sender.send(flags=final)
        finally:
            with self._all_answered:
                self._open -= 1
                self._all_answered.notify_all()
