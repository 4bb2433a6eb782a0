"""What tests of a served deployment need: a spec, a rendered repository, clients."""

from __future__ import annotations

import json
import os
import queue
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc

from pipeline.serving.repository import RepositoryOptions, render_repository
from pipeline.serving.server import TritonServer
from pipeline.serving.server_options import ServerOptions
from pipeline.spec import DeploymentSpec

HERE = Path(__file__).resolve().parent
SCRIPTED = RepositoryOptions(
    step_model_factory="scripted_models:step_model", orchestrator_factory="scripted_models:orchestrator"
)


def make_spec(**changes: Any) -> DeploymentSpec:
    """A small deployment; nested fields are replaced whole."""
    fields: dict[str, Any] = {
        "name": "scripted",
        "target": {"model": "scripted"},
        "draft": {"kind": "model", "model": "scripted"},
        "limits": {"max_requests": 16, "max_queue": 64},
    }
    return DeploymentSpec.model_validate({**fields, **changes})


LOOP = RepositoryOptions(step_model_factory="real_loop:step_model", orchestrator_factory="real_loop:orchestrator")


def scripted_server(
    folder: Path, spec: DeploymentSpec, factories: RepositoryOptions = SCRIPTED, **options: Any
) -> TritonServer:
    """A server of scripted models; `folder` takes the repository and the engines."""
    engines = folder / "engines"
    for role in ("target", "draft"):
        (engines / role).mkdir(parents=True, exist_ok=True)
    repository = render_repository(
        spec,
        folder / "repository",
        replace(factories, engines_dir=engines),
    )
    env = {"PYTHONPATH": str(HERE), "SCRIPTED_FLAGS": str(folder)}
    return TritonServer(repository, engines, ServerOptions(env=env, exit_timeout_s=2, shm_bytes=4 << 20, **options))


def group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@dataclass
class Answer:
    """Everything that came back for one request over a gRPC stream."""

    texts: list[str] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    empty_final: bool = False


def grpc_inputs(values: dict[str, Any]) -> list[grpc.InferInput]:
    inputs = []
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            array = value
        elif isinstance(value, bool):
            array = np.array([value])
        elif isinstance(value, int):
            array = np.array([value], np.uint64 if name == "seed" else np.int32)
        elif isinstance(value, float):
            array = np.array([value], np.float32)
        else:
            items = [value] if isinstance(value, str) else value
            array = np.array([item.encode() for item in items], np.object_)
        array = array.reshape(1, -1)
        kind = {"b": "BOOL", "u": "UINT64", "i": "INT32", "f": "FP32", "O": "BYTES"}[array.dtype.kind]
        tensor = grpc.InferInput(name, list(array.shape), kind)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


class GrpcStream:
    """One gRPC stream; requests on it are told apart by id."""

    def __init__(self, address: str) -> None:
        self.client = grpc.InferenceServerClient(address)
        self.events: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(callback=lambda result, error: self.events.put((result, error)))

    def send(self, values: dict[str, Any], request_id: str = "", parameters: dict[str, Any] | None = None) -> None:
        self.client.async_stream_infer(
            "spec_decode",
            grpc_inputs(values),
            request_id=request_id,
            parameters=parameters,
            enable_empty_final_response=True,
        )

    def answers(self, count: int, timeout_s: float = 30.0) -> dict[str, Answer]:
        """Collect until `count` requests have ended."""
        found: dict[str, Answer] = {}
        for _ in range(count):
            self._collect_one(found, timeout_s)
        return found

    def _collect_one(self, found: dict[str, Answer], timeout_s: float) -> None:
        while True:
            result, error = self.events.get(timeout=timeout_s)
            if error is not None:
                found.setdefault("", Answer()).error = error.message()
                return
            response = result.get_response()
            answer = found.setdefault(response.id, Answer())
            final = response.parameters["triton_final_response"].bool_param
            outputs = {tensor.name: result.as_numpy(tensor.name).reshape(-1).tolist() for tensor in response.outputs}
            if outputs:
                answer.texts.append(outputs["text_output"][0].decode())
                answer.outputs.append(outputs)
            elif final:
                answer.empty_final = True
            if final:
                return

    def ask(self, values: dict[str, Any], parameters: dict[str, Any] | None = None) -> Answer:
        self.send(values, "", parameters)
        return self.answers(1).get("", Answer())

    def close(self, cancel: bool = False) -> None:
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()


def http_generate(address: str, body: dict[str, Any], timeout_s: float = 30.0) -> tuple[int, dict[str, Any]]:
    """POST to /generate. Returns (status, JSON)."""
    url = f"http://{address}/v2/models/spec_decode/generate"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(body).encode()), timeout=timeout_s
        ) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def http_stream(address: str, body: dict[str, Any], timeout_s: float = 30.0) -> Iterator[dict[str, Any]]:
    """POST to /generate_stream; yields the JSON of each event."""
    url = f"http://{address}/v2/models/spec_decode/generate_stream"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=timeout_s) as response:
        for line in response:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
