"""The demo deployment behind a real Triton server, started once for all tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.client.serve import repository_dir
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.engine.manifest import MANIFEST_NAME
from pipeline.serving.repository import render_repository
from pipeline.serving.server import TritonServer
from pipeline.serving.server_options import ServerOptions
from pipeline.serving.shared_memory import group_members, regions
from pipeline.spec import DEFAULT_SPEC, DeploymentSpec
from pipeline.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def demo_spec() -> DeploymentSpec:
    """The default spec, whose engines `make test` builds first."""
    spec = DeploymentSpec.load(DEFAULT_SPEC)
    for role in ("target", "draft"):
        path = spec.engines_dir / role / MANIFEST_NAME
        assert path.is_file(), f"{path} is missing: run `make engines`"
    return spec


@pytest.fixture(scope="session")
def demo_server(demo_spec: DeploymentSpec) -> Iterator[TritonServer]:
    """Triton with spec_decode, target and draft, on free ports; it must leave nothing behind."""
    repository = render_repository(demo_spec, repository_dir(demo_spec).with_name("test-repository"))
    options = ServerOptions(requests=demo_spec.limits.max_requests, exit_timeout_s=2)
    server = TritonServer(repository, demo_spec.engines_dir, options)
    server.start()
    pid = server.pid
    assert pid is not None
    try:
        server.wait_ready(120)
        server.wait_inference(120)
        yield server
    finally:
        server.stop()
        assert group_members(pid) == []
        assert regions(pid) == []


@pytest.fixture
def client(demo_server: TritonServer) -> Iterator[SpecDecodeClient]:
    with SpecDecodeClient(demo_server.grpc_address, timeout_s=120) as client:
        yield client


@pytest.fixture(scope="session")
def tokenizer(demo_spec: DeploymentSpec) -> Tokenizer:
    return Tokenizer.load(demo_spec.engine_dir("target"))
