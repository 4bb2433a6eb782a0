"""Stand-ins for `triton_python_backend_utils`, so that the logic of model.py runs without Triton."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError:
    INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL = "invalid", "unavailable", "cancelled", "internal"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self._message, self.code = message, code

    def message(self) -> str:
        return self._message


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        self.tensors, self._error = output_tensors or [], error

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def output_tensors(self) -> list[Tensor]:
        return self.tensors

    def arrays(self) -> dict[str, np.ndarray]:
        return {tensor.name(): tensor.as_numpy() for tensor in self.tensors}


class Logger:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log_error(self, line: str) -> None:
        self.lines.append(line)

    log_warn = log_info = log_error


class Sender:
    """Fails the test where the server would crash Triton: anything after FINAL."""

    def __init__(self, fail_sends: int = 0) -> None:
        self.responses: list[InferenceResponse] = []
        self.finals = 0
        self.cancelled = False
        self.done = threading.Event()
        self.misused = False
        self._fail_sends = fail_sends
        self._closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        self.misused |= self.finals > 0
        if self._closed:
            raise RuntimeError("the response sender is closed")
        self._closed = bool(flags)  # before anything is sent, as the real one does
        if self._fail_sends:
            self._fail_sends -= 1
            raise RuntimeError("scripted send failure")
        if response is not None:
            self.responses.append(response)
        if flags:
            self.finals += 1
            self.done.set()

    def is_cancelled(self) -> bool:
        self.misused |= self.finals > 0
        return self.cancelled

    def wait(self) -> list[InferenceResponse]:
        assert self.done.wait(5), "no FINAL flag"
        assert self.finals == 1 and not self.misused
        return self.responses


class Request:
    """What `execute` is given."""

    def __init__(
        self,
        tensors: dict[str, np.ndarray],
        parameters: dict[str, Any] | None = None,
        request_id: str = "r",
        outputs: tuple[str, ...] = (),
        sender: Sender | None = None,
        timeout: int = 0,
    ) -> None:
        self._timeout = timeout
        self._tensors, self._parameters, self._id, self._outputs = tensors, parameters, request_id, outputs
        self.sender = sender or Sender()

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self._tensors.items()]

    def parameters(self) -> str:
        return json.dumps(self._parameters) if self._parameters else ""

    def request_id(self) -> str:
        return self._id

    def timeout(self) -> int:
        return self._timeout

    def requested_output_names(self) -> list[str]:
        return list(self._outputs)

    def get_response_sender(self) -> Sender:
        return self.sender


class Utils:
    """The module, with a scripted answer to BLS calls."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
    Tensor = Tensor
    TritonError = TritonError
    InferenceResponse = InferenceResponse

    def __init__(self, execute: Callable[[dict[str, Any]], InferenceResponse] | None = None) -> None:
        self.Logger = Logger()
        self._execute = execute

    def InferenceRequest(self, **fields: Any) -> Any:
        outer = self

        class Call:
            def exec(self) -> InferenceResponse:
                assert outer._execute is not None
                return outer._execute(fields)

        return Call()
