"""Triton's Python backend, seen from inside a stub process: its utilities, a model's arguments, its errors."""

from __future__ import annotations

import importlib
import json
import re
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipeline.errors import EngineError, SpecDecodeError, StepError

# The stub's own names of its error codes: NVIDIA python_backend README, "Error Handling".
_TRITON_CODES = {
    "INVALID_ARGUMENT": "INVALID_ARG",
    "UNAVAILABLE": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
}
_CODED = re.compile(r"\[([A-Z_]+)\] (.*)", re.DOTALL)


_STACK_BYTES = 8 << 20


def usual_stacks() -> None:
    """Threads of this process get the usual stack: the server's, meant for its JSON reader, is inherited by its models,
    and some hundred threads of 256 MB are more address space than every machine grants."""
    threading.stack_size(_STACK_BYTES)


def backend_utils() -> Any:
    """`triton_python_backend_utils`, which exists inside a stub process only."""
    return importlib.import_module("triton_python_backend_utils")


@dataclass(frozen=True)
class ModelArguments:
    """What `initialize` is told.

    Attributes:
        name: of the Triton model.
        version_dir: the folder that holds this model.py.
        parameters: of config.pbtxt.
    """

    name: str
    version_dir: Path
    parameters: Mapping[str, str]

    @classmethod
    def from_triton(cls, args: Mapping[str, str]) -> ModelArguments:
        config = json.loads(args["model_config"])
        values = {key: str(value["string_value"]) for key, value in config.get("parameters", {}).items()}
        # Triton gives the model's folder, or with some repository agents the model.py itself.
        folder = Path(args["model_repository"])
        if folder.suffix == ".py":
            folder = folder.parent.parent
        return cls(args["model_name"], folder / args["model_version"], values)

    def parameter(self, key: str) -> str:
        """A parameter that the rendered config.pbtxt must carry.

        Raises:
            EngineError: it does not.
        """
        if key not in self.parameters:
            raise EngineError(f"config.pbtxt of model {self.name} lacks the parameter {key}")
        return self.parameters[key]


def load_factory(reference: str) -> Callable[..., Any]:
    """Import "package.module:function".

    Raises:
        EngineError: the reference is malformed, or names nothing callable.
    """
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise EngineError(f"factory {reference!r} cannot be loaded: {error}") from error
    if not callable(found):
        raise EngineError(f"factory {reference!r} is not callable")
    return cast(Callable[..., Any], found)


def error_text(error: BaseException) -> str:
    """ "[CODE] message" in one line: BLS and HTTP lose Triton's own code, the text keeps it."""
    if isinstance(error, SpecDecodeError):
        return f"[{error.code}] {error}"
    return f"[{SpecDecodeError.code}] {type(error).__name__}: {error}"


def triton_error(utils: Any, error: BaseException) -> Any:
    """The `pb_utils.TritonError` of an exception; what is no error of ours is logged with its traceback."""
    if not isinstance(error, SpecDecodeError):
        utils.Logger.log_error("".join(traceback.format_exception(error)))
        return utils.TritonError(error_text(error))
    name = _TRITON_CODES.get(error.code)
    return utils.TritonError(error_text(error), *([getattr(utils.TritonError, name)] if name else []))


def step_error(message: str) -> StepError:
    """The StepError of a child's error message, with the code that its text carries."""
    match = _CODED.search(message)
    error = StepError(match[2] if match else message)
    if match:
        error.code = match[1]
    return error


def read_inputs(request: Any) -> dict[str, Any]:
    """Named numpy arrays of a `pb_utils.InferenceRequest`."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def read_timeout(request: Any) -> dict[str, int]:
    """Triton's own request timeout in microseconds, as the parameter of this name that HTTP `generate` passes on.

    A gRPC client's never is among the parameters: the front end takes it out.
    """
    timeout = int(request.timeout())
    return {"timeout": timeout} if timeout else {}


def read_parameters(request: Any) -> dict[str, Any]:
    """Request parameters: JSON scalars by name."""
    text = request.parameters()
    return dict(json.loads(text)) if text else {}
