"""A bad request, how it is sent, and what must come back: the rows of docs/errors.md."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

GENERATE = "/v2/models/spec_decode/generate"
PROMPT = "The best thing about the sea is"
GOOD: dict[str, Any] = {"text_input": PROMPT, "max_tokens": 2}
INVALID = "INVALID_ARGUMENT"
IN_STREAM = "in the stream"
"""Triton refuses before the model has seen the request, and sends a message without a status."""


@dataclass(frozen=True)
class Refusal:
    """What comes back: the status, and words that the message must hold."""

    status: str | int
    says: str


@dataclass(frozen=True)
class Grpc:
    """A request over gRPC: ModelStreamInfer, or ModelInfer where `unary`.

    Attributes:
        tensors: by name; numpy arrays with the batch dimension.
    """

    refusal: Refusal
    tensors: dict[str, np.ndarray]
    parameters: dict[str, Any] = field(default_factory=dict)
    model: str = "spec_decode"
    version: str = ""
    outputs: tuple[str, ...] = ()
    unary: bool = False


@dataclass(frozen=True)
class Http:
    """A request over HTTP."""

    refusal: Refusal
    body: bytes
    path: str = GENERATE
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ErrorCase:
    """One row: what is wrong with the request, and each protocol that can say it."""

    group: str
    what: str
    grpc: Grpc | None = None
    http: Http | None = None


def tensor(value: Any) -> np.ndarray:
    """[1, n]: what a client sends for a plain value."""
    if isinstance(value, np.ndarray):
        return value
    items = value if isinstance(value, list) else [value]
    if isinstance(items[0], str | bytes):
        return np.array([item.encode() if isinstance(item, str) else item for item in items], np.object_).reshape(1, -1)
    kind = {bool: np.bool_, int: np.int32, float: np.float32}[type(items[0])]
    return np.array(items, kind).reshape(1, -1)


def tensors(inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Those of the good request with `inputs` in their place; None leaves one out."""
    return {name: tensor(value) for name, value in {**GOOD, **inputs}.items() if value is not None}


def json_body(inputs: dict[str, Any]) -> bytes:
    """The same as JSON. A float that JSON does not have is left as Python writes it."""
    return json.dumps({name: value for name, value in {**GOOD, **inputs}.items() if value is not None}).encode()


def both(group: str, what: str, says: str, http_status: int = 400, **inputs: Any) -> ErrorCase:
    """Refused with one message over both protocols."""
    return ErrorCase(
        group,
        what,
        Grpc(Refusal(INVALID, says), tensors(inputs)),
        Http(Refusal(http_status, says), json_body(inputs)),
    )


def over_grpc(group: str, what: str, says: str, status: str = INVALID, **inputs: Any) -> ErrorCase:
    """Can be said over gRPC alone."""
    return ErrorCase(group, what, grpc=Grpc(Refusal(status, says), tensors(inputs)))


def over_http(
    group: str, what: str, says: str, status: int = 400, body: bytes | None = None, **inputs: Any
) -> ErrorCase:
    """Can be said over HTTP alone."""
    return ErrorCase(group, what, http=Http(Refusal(status, says), json_body(inputs) if body is None else body))


def each(
    group: str,
    what: str,
    grpc_says: str,
    http_says: str,
    status: str = IN_STREAM,
    http_status: int = 500,
    **inputs: Any,
) -> ErrorCase:
    """Refused by Triton itself, in other words over each protocol: values of a wrong type, as a rule."""
    return ErrorCase(
        group,
        what,
        Grpc(Refusal(status, grpc_says), tensors(inputs)),
        Http(Refusal(http_status, http_says), json_body(inputs)),
    )
