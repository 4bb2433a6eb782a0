"""Servers for tests. A server is always stopped, and leaves neither processes nor shared memory behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.serving.server import TritonServer
from pipeline.serving.shared_memory import group_members, regions
from pipeline.spec import DeploymentSpec

from .support import GrpcStream, make_spec, scripted_server

ServerFactory = Callable[..., TritonServer]


def stop_and_check(server: TritonServer) -> None:
    pid = server.pid
    server.stop()
    if pid is not None:
        assert group_members(pid) == []
        assert regions(pid) == []


@pytest.fixture
def triton_server(tmp_path: Path) -> Iterator[ServerFactory]:
    """Call it with a spec and ServerOptions' fields: gives a server that is not started yet."""
    servers: list[TritonServer] = []

    def make(spec: DeploymentSpec | None = None, folder: Path = tmp_path, **options: object) -> TritonServer:
        server = scripted_server(folder, spec or make_spec(), **options)
        servers.append(server)
        return server

    yield make
    for server in servers:
        stop_and_check(server)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """One server of scripted models for every test that does it no harm."""
    folder = tmp_path_factory.mktemp("served")
    spec = make_spec(deadlines={"target_s": 0.5, "draft_s": 0.5}, limits={"max_requests": 40, "max_queue": 4})
    server = scripted_server(folder, spec, requests=40)
    server.start()
    try:
        server.wait_ready(60)
        server.wait_inference(prompt="count 1")
        yield server
    finally:
        stop_and_check(server)


@pytest.fixture
def stream(served: TritonServer) -> Iterator[GrpcStream]:
    stream = GrpcStream(served.grpc_address)
    yield stream
    stream.close()
