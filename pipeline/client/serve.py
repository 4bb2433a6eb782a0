"""`specdec serve` and `specdec stop`: a server in the foreground, and its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import psutil
from rich.console import Console

from pipeline.engine.fit import read_engine_manifest
from pipeline.errors import ServerError
from pipeline.orchestrator.switch import SWITCH_NAME, parse_setting, write_setting
from pipeline.serving.contract import SPEC_DECODE_MODEL
from pipeline.serving.launch import launch_of, require_launcher
from pipeline.serving.model_control import ModelControl
from pipeline.serving.otlp import trace_flags
from pipeline.serving.repository import model_names, render_repository
from pipeline.serving.server import StartProgress, TritonServer
from pipeline.serving.server_lock import ServerRecord, read_record
from pipeline.serving.server_options import ServerOptions
from pipeline.serving.shared_memory import is_served
from pipeline.serving.shared_memory_need import LawTraffic
from pipeline.serving.supervisor import Supervisor
from pipeline.serving.tensorrt_parameters import BACKEND
from pipeline.serving.triton_install import find_triton, require_backend
from pipeline.spec import ROOT, DeploymentSpec, PortsSpec

START_S = 300.0
GPU_START_S = 1800.0  # 140 GB of engines from a network disk
_STOP_MARGIN_S = 20.0  # beyond what running requests are given


def repository_dir(spec: DeploymentSpec) -> Path:
    """Where the model repository of a spec is rendered."""
    return ROOT / "runs" / spec.name / "repository"


@contextmanager
def running_server(
    spec: DeploymentSpec, console: Console, ports: PortsSpec | None = None, control: ModelControl | None = None
) -> Iterator[TritonServer]:
    """Render, start, wait until an inference has passed; stop at the end.

    Args:
        ports: None takes the spec's.
        control: closes model control to all others; None: to everybody.

    Raises:
        EngineError: an engine is missing.
        ServerError: the server cannot start.
    """
    manifests = {role: read_engine_manifest(spec, role) for role in spec.model_roles}
    launch = launch_of(spec)
    install = find_triton()
    if launch.gpu:
        require_backend(install, BACKEND)
        require_launcher(launch)
    repository = render_repository(spec, repository_dir(spec))
    options = ServerOptions(
        ports=spec.ports if ports is None else ports,
        requests=spec.limits.max_requests * spec.draft_calls,
        exit_timeout_s=spec.deadlines.drain_s,
        laws=LawTraffic.of(spec, manifests["target"].padded_vocab_size),
        log_path=repository.parent / "server.log",
        launch=launch,
        arguments=(*(control or ModelControl()).flags, *trace_flags(spec)),
    )
    server = TritonServer(repository, spec.engines_dir, options, install)
    with _signals_interrupt():
        try:
            with console.status("starting Triton") as status:

                def show(progress: StartProgress) -> None:
                    loaded = ", ".join(progress.loaded) or "none yet"
                    status.update(f"starting Triton: {progress.elapsed_s:.0f} s, models loaded: {loaded}")

                server.start()
                server.wait_ready(GPU_START_S if launch.gpu else START_S, show)
                status.update("waiting for the first inference")
                # Three tokens with K = 1: the draft's process is tried as well.
                server.wait_inference(max_tokens=3, num_draft_tokens=1)
            yield server
        finally:
            with console.status("stopping Triton"):
                server.stop()


def serve(spec: DeploymentSpec, console: Console, ports: PortsSpec) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP. Returns the exit status."""
    try:
        started = time.monotonic()
        control = ModelControl()
        with running_server(spec, console, ports, control) as server:
            console.print(
                f"serving {spec.name}: an inference has passed after {time.monotonic() - started:.1f} s; "
                f"http {server.http_address}, grpc {server.grpc_address}, metrics {server.metrics_address}/metrics, "
                f"pid {server.pid}",
                highlight=False,
                soft_wrap=True,
            )
            own_process = {name: spec.engine == "embedded" or name == SPEC_DECODE_MODEL for name in model_names(spec)}
            Supervisor(server, own_process, control, partial(_say, console)).run()
    except KeyboardInterrupt:
        pass
    console.print("stopped")
    return 0


def _say(console: Console, line: str) -> None:
    console.print(f"{time.strftime('%H:%M:%S')} {line}", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Turn the first signal that asks for the end into KeyboardInterrupt, so that servers are stopped on the way."""
    asked = False

    def end(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not asked:  # a second signal must not interrupt the clean-up
            asked = True
            raise KeyboardInterrupt

    previous = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def running_record(spec: DeploymentSpec) -> ServerRecord | None:
    """The server of a spec, whoever started it; None where none runs."""
    record = read_record(spec.engines_dir)
    # The record may have outlived its server, and the number may be another process's by now.
    return record if record is not None and is_served(record.pid) else None


def switch_speculation(spec: DeploymentSpec, console: Console, setting: str | None) -> int:
    """Switch a running deployment, or say how it is switched. Returns the exit status.

    Raises:
        SpecError: the setting is none, or cannot be written.
        ServerError: no server of the spec runs; it starts with what the spec says.
    """
    path = spec.engines_dir / SWITCH_NAME
    if setting is not None:
        wanted = parse_setting(setting, spec.limits.max_draft_len)
    if running_record(spec) is None:
        raise ServerError(f"no server of {spec.name} is running; one starts with `speculation: {spec.speculation}`")
    if setting is not None:
        write_setting(path, wanted)
    now = path.read_text().strip() if path.exists() else spec.speculation
    console.print(f"speculation of {spec.name}: {now}", highlight=False)
    return 0


def stop(spec: DeploymentSpec, console: Console) -> int:
    """Stop the server of a spec, whoever started it. Returns the exit status."""
    record = running_record(spec)
    if record is None:
        console.print(f"no server of {spec.name} is running")
        return 0
    os.kill(record.pid, signal.SIGINT)
    with console.status(f"stopping process {record.pid}"):
        try:
            psutil.Process(record.pid).wait(spec.deadlines.drain_s + _STOP_MARGIN_S)
        except psutil.NoSuchProcess:
            pass
        except psutil.TimeoutExpired:
            waited = spec.deadlines.drain_s + _STOP_MARGIN_S
            raise ServerError(f"process {record.pid} did not end within {waited:g} s") from None
    console.print(f"stopped {spec.name}")
    return 0
