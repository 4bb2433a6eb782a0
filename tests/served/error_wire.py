"""Sends a bad request as it is, and says what came back."""

from __future__ import annotations

import http.client
import queue
from typing import Any

import numpy as np
import tritonclient.grpc as grpc

from tests.served.error_case import IN_STREAM, Grpc, Http, tensors

KINDS = {"b": "BOOL", "O": "BYTES"}
TYPES = {"int32": "INT32", "float32": "FP32", "uint64": "UINT64", "float16": "FP16", "uint8": "UINT8"}
# With it Triton ends the stream with the error's status; without, the error is a message of the stream.
STATUS_HEADER = {"triton_grpc_error": "true"}
ANSWER_S = 60.0


def grpc_input(name: str, array: np.ndarray) -> grpc.InferInput:
    kind = KINDS.get(array.dtype.kind) or TYPES[str(array.dtype)]
    found = grpc.InferInput(name, list(array.shape), kind)
    found.set_data_from_numpy(array)
    return found


def send_grpc(client: grpc.InferenceServerClient, request: Grpc) -> tuple[str, str]:
    """(status, message); ("OK", "") where it was answered."""
    inputs = [grpc_input(name, array) for name, array in request.tensors.items()]
    asked: dict[str, Any] = {
        "model_name": request.model,
        "inputs": inputs,
        "model_version": request.version,
        "parameters": request.parameters or None,
        "outputs": [grpc.InferRequestedOutput(name) for name in request.outputs] or None,
    }
    events: queue.Queue[tuple[Any, Any]] = queue.Queue()
    try:
        if request.unary:
            client.infer(**asked, client_timeout=ANSWER_S)
            return "OK", ""
        client.start_stream(callback=lambda result, error: events.put((result, error)), headers=STATUS_HEADER)
        client.async_stream_infer(**asked, enable_empty_final_response=True)
        _, error = events.get(timeout=ANSWER_S)
        if error is not None:
            raise error
    except grpc.InferenceServerException as error:
        status = error.status()
        return IN_STREAM if status is None else status.removeprefix("StatusCode."), str(error.message())
    finally:
        client.stop_stream()
    return "OK", ""


def send_http(address: str, request: Http) -> tuple[int, str]:
    """(status, body)."""
    connection = http.client.HTTPConnection(address, timeout=ANSWER_S)
    try:
        connection.request(request.method, request.path, request.body, request.headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def good_text(client: grpc.InferenceServerClient) -> str:
    """The text of the good request, asked over gRPC."""
    events: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(callback=lambda result, error: events.put((result, error)))
    try:
        client.async_stream_infer("spec_decode", [grpc_input(*item) for item in tensors({}).items()])
        result, error = events.get(timeout=ANSWER_S)
        assert error is None, error
        text: str = result.as_numpy("text_output").reshape(-1)[0].decode()
        return text
    finally:
        client.stop_stream()
