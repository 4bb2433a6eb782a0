"""Errors a user can cause or must act on. Every message names the field, the value and the limit."""

from __future__ import annotations

_SHOWN_CHARS = 200  # a gRPC status is a header, and a header of more than 16 KB breaks the connection


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


class SpecDecodeError(Exception):
    """Base of every error that is shown to a user as one line, without a traceback."""

    code = "INTERNAL"


class InvalidRequestError(SpecDecodeError):
    """A request field is out of range; nothing was computed.

    Args:
        field: the input's name, as the client wrote it.
        value: what was given; the message shows its beginning.
        limit: what is allowed, in words.
    """

    code = "INVALID_ARGUMENT"

    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(f"{_shortened(field)} = {_shortened(repr(value))}: {limit}")
        self.field = field
        self.value = value
        self.limit = limit


class SpecError(SpecDecodeError):
    """The deployment spec is malformed or asks for something that cannot be had."""

    code = "INVALID_ARGUMENT"


class EngineError(SpecDecodeError):
    """An engine folder is missing, damaged, or does not fit its spec."""


class StepError(SpecDecodeError):
    """A step model refused or failed one call."""


class StepTimeoutError(StepError):
    """A step model did not answer before its deadline; the call is abandoned."""

    code = "DEADLINE_EXCEEDED"


class RequestTimeoutError(SpecDecodeError):
    """The client's own deadline for a request has passed."""

    code = "DEADLINE_EXCEEDED"


class OverloadedError(SpecDecodeError):
    """The queue is full, or was too slow; the same request may succeed later."""

    code = "UNAVAILABLE"


class CancelledError(SpecDecodeError):
    """The client withdrew the request."""

    code = "CANCELLED"


class ServerError(SpecDecodeError):
    """Triton could not be started, or stopped answering."""
