"""The server process: what keeps it from starting, how it dies, what it leaves behind."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import ServerError
from pipeline.serving import stall
from pipeline.serving.server import StartProgress, TritonServer
from pipeline.serving.shared_memory import group_members, regions
from pipeline.spec import PortsSpec

from .scripted_models import CRASH, HANG
from .support import GrpcStream, http_generate, make_spec

pytestmark = pytest.mark.served

Factory = Callable[..., TritonServer]
SMALL = make_spec(draft={"kind": "none"})


def test_port_in_use(triton_server: Factory, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = triton_server(SMALL, ports=PortsSpec(http=port, grpc=0, metrics=0))
        with pytest.raises(ServerError, match=f"ports.http = {port}: Address already in use"):
            server.start()
    assert not list((tmp_path / "engines").glob(".*")), "the lock was kept"


def test_repository_without_models(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="holds no model"):
        TritonServer(tmp_path, tmp_path).start()


def test_shared_memory_too_small(tmp_path: Path, triton_server: Factory) -> None:
    server = triton_server(SMALL)
    object.__setattr__(server._options, "shm_bytes", 1 << 50)
    with pytest.raises(ServerError, match="MiB free"):
        server.start()


def test_model_that_fails_to_load(triton_server: Factory, tmp_path: Path) -> None:
    server = triton_server(SMALL)
    (tmp_path / "engines" / "target" / "broken").touch()
    server.start()
    with pytest.raises(ServerError, match=r"EngineError: engine file .*/target/weights is damaged; run `make") as error:
        server.wait_ready(30)
    assert "model target" in str(error.value) and "Traceback" not in str(error.value)
    assert server.pid is None and not list((tmp_path / "engines").glob(".*"))


def test_a_life(triton_server: Factory, tmp_path: Path) -> None:
    """Start with progress, refuse a second server, serve, stop with a request in flight, leave nothing."""
    server, steps = triton_server(SMALL), []
    server.start()
    server.wait_ready(30, steps.append)
    pid = server.pid
    assert pid is not None and server.running
    assert isinstance(steps[-1], StartProgress) and set(steps[-1].loaded) == {"target", "spec_decode"}
    assert server.wait_inference(prompt="count 1") < 10
    with pytest.raises(ServerError, match=r"a test request failed: .*scripted failure"):
        server.wait_inference(prompt="fail 0")
    with pytest.raises(ServerError, match=rf"served already by process {pid} \(http 127.0.0.1:{server.ports.http}\)"):
        triton_server(SMALL).start()
    assert len(regions(pid)) == 2
    stream = GrpcStream(server.grpc_address)
    stream.send({"text_input": "slow 1", "max_tokens": 3, "stream": True})
    stream.events.get(timeout=5)
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started < 10
    stream.close()
    assert group_members(pid) == [] and regions(pid) == []
    assert not list((tmp_path / "engines").glob(".*"))
    server.stop()


def test_stub_that_dies_or_hangs_does_not_keep_the_server(triton_server: Factory) -> None:
    """A dead stub never answers, yet Triton says that it is ready: calls end by deadline, and so does stop."""
    server = triton_server(make_spec(draft={"kind": "none"}, deadlines={"target_s": 0.5}))
    server.start()
    server.wait_ready(30)
    assert "DEADLINE" in http_generate(server.http_address, {"text_input": f"call {HANG}"})[1]["error"]
    error = http_generate(server.http_address, {"text_input": f"call {CRASH}"})[1]["error"]
    assert "its process died" in error or "not healthy" in error
    with pytest.raises(ServerError, match="a test request failed"):
        server.wait_inference(prompt="call 12")
    pid = server.pid
    assert pid is not None
    server.stop()
    assert group_members(pid) == [] and regions(pid) == []


def test_killed_server_is_cleaned_up_by_stop_and_by_the_next_start(triton_server: Factory, tmp_path: Path) -> None:
    first = triton_server(SMALL)
    first.start()
    first.wait_ready(30)
    pid = first.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert first._process is not None
    first._process.wait(5)
    # Its owner died too: nobody calls stop, and the lock's descriptor is closed.
    os.close(first._lock.fd)
    first._lock._fd = None
    first._process = None
    second = triton_server(SMALL)
    second.start()
    second.wait_ready(30)
    assert group_members(pid) == [] and regions(pid) == []
    other = second.pid
    assert other is not None
    os.kill(other, signal.SIGKILL)
    with pytest.raises(ServerError, match=r"got no answer|has ended"):
        second.wait_inference(timeout_s=2, prompt="count 1")
    second.stop()
    assert group_members(other) == [] and regions(other) == []
    assert not list((tmp_path / "engines").glob(".*"))


def test_start_that_hangs_is_tried_once_more(triton_server: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process stands for a lost message: alive, and no work done."""
    monkeypatch.setattr(stall, "STALL_S", 2.0)
    server = triton_server(SMALL)
    server.start()
    first = server.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    server.wait_ready(60)
    assert server.pid not in (None, first) and group_members(first) == []
    server.wait_inference(prompt="count 1")


def test_server_that_dies_while_starting(triton_server: Factory) -> None:
    server = triton_server(SMALL)
    server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ServerError, match="Triton ended while it started"):
        server.wait_ready(30)
