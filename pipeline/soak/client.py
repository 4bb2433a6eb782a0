"""Clients that ask, may withdraw, and always say how it ended: over gRPC and over HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from pipeline.client.triton_client import Reply, SpecDecodeClient
from pipeline.errors import ServerError, SpecDecodeError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.serving.contract import SPEC_DECODE_MODEL
from pipeline.serving.generation import encode_generation
from pipeline.soak.answer import Collector, Outcome

_SILENT = "no response from"
_DROPPED = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s


class SoakClient(ABC):
    """One client; a request at a time.

    Args:
        address: host:port of its endpoint.
        patience_s: without a sign of life a request counts as hung, in seconds.
    """

    def __init__(self, address: str, patience_s: float) -> None:
        self._address = address
        self._patience_s = patience_s

    @abstractmethod
    def ask(self, request: GenerationRequest, cancel_after: int | None = None, wait_s: float = 0.0) -> Outcome:
        """The outcome of a request. Never raises for what a server does.

        Args:
            cancel_after: withdraw it after so many responses, if it has not ended by then; 0: before any was read.
            wait_s: with 0: so many seconds after it was sent.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Leave in good order."""


class GrpcClient(SoakClient):
    """Streams of gRPC; a cancelled or failed stream is replaced."""

    def __init__(self, address: str, patience_s: float) -> None:
        super().__init__(address, patience_s)
        self._client: SpecDecodeClient | None = None

    def ask(self, request: GenerationRequest, cancel_after: int | None = None, wait_s: float = 0.0) -> Outcome:
        found = Collector()
        client = self._client = self._client or SpecDecodeClient(self._address, self._patience_s)
        try:
            if cancel_after == 0:
                client.send(request)
                time.sleep(wait_s)
                self._drop()
                return Outcome("cancelled")
            for number, reply in enumerate(client.generate(request), 1):
                found.add([reply])
                if number == cancel_after and reply.finish_reason is None:
                    self._drop()
                    return Outcome("cancelled", found.answer)
            return Outcome("whole", found.answer)
        except SpecDecodeError as error:
            self._drop()
            hung = isinstance(error, ServerError) and str(error).startswith(_SILENT)
            return Outcome("hung" if hung else "error", found.answer, str(error))

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close(cancel=True)


class HttpClient(SoakClient):
    """`/generate` and `/generate_stream`; a cancelled request's connection is reset."""

    def ask(self, request: GenerationRequest, cancel_after: int | None = None, wait_s: float = 0.0) -> Outcome:
        found = Collector()
        connection = http.client.HTTPConnection(self._address, timeout=self._patience_s)
        try:
            action = "generate_stream" if request.stream else "generate"
            connection.request("POST", f"/v2/models/{SPEC_DECODE_MODEL}/{action}", http_body(request))
            if cancel_after == 0:
                time.sleep(wait_s)
                reset(connection.sock)
                return Outcome("cancelled")
            stream = connection.sock
            response = connection.getresponse()
            if response.status != 200:
                return Outcome("error", (), f"{response.status} {_words(response.read())}")
            for number, event in enumerate(_events(response, request.stream), 1):
                if "error" in event:
                    return Outcome("error", found.answer, str(event["error"]))
                found.add(http_replies(event))
                if number == cancel_after and not event.get("finish_reason"):
                    reset(stream)
                    return Outcome("cancelled", found.answer)
            ended = all(one.finish_reason for one in found.answer)
            if len(found.answer) < request.num_return_sequences or not ended:
                return Outcome("error", found.answer, "the connection ended before the answer")
            return Outcome("whole", found.answer)
        except TimeoutError:
            return Outcome("hung", found.answer, f"{_SILENT} {self._address} for {self._patience_s:g} s")
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Outcome("error", found.answer, f"the connection broke: {type(error).__name__} {error}")
        finally:
            connection.close()


def reset(connection: socket.socket) -> None:
    """Drop a connection as a process does that is killed: without good-bye, whatever is still to be read."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROPPED)
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def http_body(request: GenerationRequest) -> bytes:
    """JSON of a request for `/generate`."""
    tensors, parameters = encode_generation(request)
    body: dict[str, Any] = {}
    for name, array in tensors.items():
        items = [item.decode() if isinstance(item, bytes) else item for item in array.reshape(-1).tolist()]
        body[name] = items[0] if len(items) == 1 else items
    return json.dumps({**body, "parameters": parameters} if parameters else body).encode()


def http_replies(event: dict[str, Any]) -> list[Reply]:
    """The replies in one JSON object: one piece of a stream, or all answers of a request that does not stream."""

    def items(name: str) -> list[Any]:
        value = event.get(name, [])
        return value if isinstance(value, list) else [value]

    texts = items("text_output")
    count = max(1, len(texts))
    ids = np.array(items("token_ids"), np.int64).reshape(count, -1)
    log_probs = np.array(items("output_log_probs"), np.float32).reshape(count, -1)
    reasons, index = items("finish_reason"), items("sequence_index")
    replies = []
    for i, text in enumerate(texts):
        tokens = tuple(int(token) for token in ids[i] if token >= 0)
        replies.append(
            Reply(
                text=text,
                token_ids=tokens,
                round=None,
                statistics=None,
                finish_reason=(reasons[i] or None) if reasons else None,
                seconds=0.0,
                log_probs=tuple(float(value) for value in log_probs[i, : len(tokens)]),
                sequence_index=int(index[i]) if len(index) == count else i,
            )
        )
    return replies


def _events(response: http.client.HTTPResponse, stream: bool) -> Iterator[dict[str, Any]]:
    if not stream:
        yield json.loads(response.read())
        return
    for line in response:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def _words(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300]
