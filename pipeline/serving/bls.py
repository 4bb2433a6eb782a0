"""A step model behind Triton, called from the Python backend (Business Logic Scripting)."""

from __future__ import annotations

import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from pipeline.engine.step import StepModel, StepRequest, StepResult
from pipeline.errors import OverloadedError, SpecDecodeError, StepError
from pipeline.serving.adapter import StepAdapter
from pipeline.serving.backend import step_error
from pipeline.serving.contract import Tensors
from pipeline.serving.dialect import OWN, Dialect
from pipeline.serving.request_tensors import EncodedCall, encode_stop
from pipeline.serving.workers import WorkerPool

STOP_THREADS = 2


class BlsStepModel(StepModel):
    """Calls a Triton model by synchronous `exec`, one thread per call in flight.

    `exec` on a child that died or hangs never returns, so callers wait on the future with a deadline. Such a call
    keeps its thread, and a slot of the backend's thread pool, until the child answers: `abandoned` counts the calls
    that are past `deadline_s`, and other threads take over their work.

    Args:
        model_name: of the Triton model.
        utils: `triton_python_backend_utils`.
        max_calls: calls in flight, abandoned ones not counted; more wait for a thread.
        deadline_s: seconds after which a call counts as abandoned; callers should wait as long.
        max_abandoned: with so many, further calls are refused at once instead of eating the thread pool.
        dialect: of the child's engine.
    """

    def __init__(
        self,
        model_name: str,
        utils: Any,
        *,
        max_calls: int,
        deadline_s: float,
        max_abandoned: int = 16,
        dialect: Dialect = OWN,
    ) -> None:
        self._name = model_name
        self._utils = utils
        self._deadline_s = deadline_s
        self._max_abandoned = max_abandoned
        self._adapter = StepAdapter(dialect)
        self._pool = WorkerPool(f"bls-{model_name}", max_calls)
        self._max_calls = max_calls
        self._stops = self._stop_threads()
        self._stopping: set[float] = set()  # when stops began that have not returned
        self._inside: dict[Future[StepResult], float] = {}  # -> when its exec began
        self._lost: set[Future[StepResult]] = set()  # calls to a process that died

    def _stop_threads(self) -> WorkerPool:
        # A stop of a dead child never returns either: a few threads for all of them. All calls may have to be stopped
        # at once, when their client goes; what would wait beyond those is dropped.
        return WorkerPool(f"bls-{self._name}-stop", STOP_THREADS, max_waiting=self._max_calls)

    @property
    def abandoned(self) -> int:
        """Calls past their deadline, or to a process that died, that still hold a thread."""
        overdue = time.monotonic() - self._deadline_s
        return sum(began < overdue or future in self._lost for future, began in list(self._inside.items()))

    def submit(self, request: StepRequest) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        abandoned = self.abandoned
        try:
            if abandoned >= self._max_abandoned:
                raise StepError(
                    f"{abandoned} calls to model {self._name} never returned (limit {self._max_abandoned}); "
                    "the server must be restarted"
                )
            self._pool.write_off(abandoned)
            self._pool.submit(lambda: self._run(request, future))
        except SpecDecodeError as error:
            future.set_exception(error)
        except RuntimeError as error:  # no thread to be had
            future.set_exception(StepError(f"model {self._name}: {error}"))
        return future

    def stop(self, request_id: str) -> None:
        """Send NVIDIA's stop request: `stop` = true with the request id of the call to end."""
        with suppress(OverloadedError):  # closed, or the child answers no stops
            self._stops.submit(lambda: self._exec_stop(request_id))

    def fail_running(self, reason: str, begun_before: float) -> None:
        """End calls inside `exec` with an error; their threads are given up as if their deadline had passed.

        Args:
            reason: for the error.
            begun_before: `time.monotonic`; later calls go on.
        """
        if any(began < begun_before for began in tuple(self._stopping)):
            # Those threads are lost as well, and a cancellation must reach the next process.
            self._stopping = set()
            self._stops.close()
            self._stops = self._stop_threads()
        for future, began in list(self._inside.items()):
            if began >= begun_before:
                continue
            self._lost.add(future)
            if future not in self._inside:  # answered meanwhile, and nobody would take it off again
                self._lost.discard(future)
            with suppress(InvalidStateError):
                future.set_exception(StepError(f"model {self._name}: {reason} during the call"))

    def close(self) -> None:
        """Refuse further calls. A call that is inside `exec` ends when its child answers, or never."""
        self._stops.close()
        for job in self._pool.close():
            job()

    def execute(self, request: StepRequest) -> StepResult:
        """One synchronous call; a second where the engine refused only the number of drafts.

        Raises:
            StepError: with the child's message and code.
            InvalidRequestError: the request does not fit its tensors, or the engine cannot do what it asks for.
            OverloadedError: the child's KV cache is full.
        """
        request = self._adapter.prepare(request)
        try:
            found = self._call(request)
        except StepError as error:
            shorter = self._adapter.shorter(request, error)
            if shorter is None:
                raise
            request = shorter
            found = self._call(request)
        return self._adapter.decode(found, request)

    def _call(self, request: StepRequest) -> Tensors:
        try:
            response = self._exec(request.request_id, self._adapter.encode(request))
        except StepError as error:
            raise self._adapter.explain(error, request) from error
        return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}

    def _exec(self, request_id: str, call: EncodedCall) -> Any:
        utils = self._utils
        try:
            response = utils.InferenceRequest(
                request_id=request_id,
                model_name=self._name,
                requested_output_names=list(call.outputs),
                inputs=[utils.Tensor(name, array) for name, array in call.tensors.items()],
                parameters=call.parameters,
            ).exec()
        except Exception as error:  # the stub raises TritonModelException, or plain RuntimeError, at its whim
            raise step_error(f"model {self._name}: {error}") from error
        if response.has_error():
            raise step_error(f"model {self._name}: {response.error().message()}")
        return response

    def _exec_stop(self, request_id: str) -> None:
        began, stopping = time.monotonic(), self._stopping
        stopping.add(began)
        try:
            self._exec(request_id, encode_stop())
        except SpecDecodeError as error:
            self._utils.Logger.log_warn(f"stop of call {request_id} failed: {error}")
        finally:
            stopping.discard(began)

    def _run(self, request: StepRequest, future: Future[StepResult]) -> None:
        if future.cancelled():
            return
        outcome: StepResult | BaseException
        self._inside[future] = time.monotonic()
        try:
            if self._pool.closed:
                raise StepError(f"model {self._name} is closed")
            outcome = self.execute(request)
        except SpecDecodeError as error:
            outcome = error
        except Exception as error:
            outcome = StepError(f"model {self._name}: {type(error).__name__}: {error}")
        finally:
            del self._inside[future]
            self._lost.discard(future)
        with suppress(InvalidStateError):  # cancelled meanwhile
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
