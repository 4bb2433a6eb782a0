"""`make gpu-check ENGINE=embedded`: the embedded engine on CUDA, in this process and behind Triton."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path

import torch
from gpu_benchmark import compare
from gpu_report import Report
from gpu_steps import command, program, run
from rich.console import Console

from pipeline import __version__
from pipeline.client.local import local_pipeline
from pipeline.client.serve import running_server
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.conformance.local import local_replies
from pipeline.engine.device import describe, require_cuda
from pipeline.errors import EngineError
from pipeline.serving.ports import FREE_PORTS
from pipeline.spec import ROOT, DeploymentSpec

SPEC = ROOT / "build" / "profiles" / "demo-cuda.yaml"
ROUND = ROOT / "build" / "gpu_round.py"
ROUND_LIMIT_S = 600.0


def require_gpu(spec: DeploymentSpec) -> torch.device:
    """What a check needs.

    Raises:
        EngineError: a GPU or torch's CUDA build is missing, or the spec is of another engine or device.
    """
    if spec.engine != "embedded" or spec.device == "cpu":
        raise EngineError(
            f"{spec.name} is of engine: {spec.engine}, device: {spec.device}; gpu-check of the embedded engine needs "
            "engine: embedded and device: cuda"
        )
    return require_cuda()


def machine(device: torch.device) -> dict[str, str]:
    """What a reader of the report must know about where it ran."""
    return {
        "GPU": describe(device),
        "GPU memory": f"{torch.cuda.mem_get_info(device)[1] / 1e9:.0f} GB",
        "torch": torch.__version__,
        "CUDA of torch": str(torch.version.cuda),
        "specdec": __version__,
        "Python": platform.python_version(),
        "kernel": platform.release(),
    }


def check(spec: DeploymentSpec, spec_path: Path, folder: Path, report: Report, console: Console) -> None:
    """Run every step into `report`. The round needs no engines; the others need those of the first step."""
    folder.mkdir(parents=True, exist_ok=True)
    run(report, console, "round", lambda: round_report(folder, report))
    if not run(report, console, "engines", lambda: command(["engines", "--spec", str(spec_path)])):
        return
    found = str(folder / "conformance.json")
    run(
        report,
        console,
        "conformance",
        lambda: command(["conformance", "--spec", str(spec_path), "--quick", "--json", found]),
    )
    run(report, console, "benchmark", lambda: in_process(spec, report))
    run(report, console, "serve", lambda: served(spec, report, console))


def round_report(folder: Path, report: Report) -> str:
    """The prepared script, in a process of its own: what it takes of the GPU is free afterwards."""
    found = folder / "round.json"
    found.unlink(missing_ok=True)
    try:
        return program([str(ROUND), "--json", str(found)], ROUND.name, ROUND_LIMIT_S)
    finally:
        if found.is_file():
            report.data["round"] = json.loads(found.read_text())


def in_process(spec: DeploymentSpec, report: Report) -> str:
    """Greedy answers without Triton: draft and target on streams of their own."""
    with local_pipeline(spec) as local:
        return compare(lambda request: local_replies(local.orchestrator, request), report, "benchmark in process")


def served(spec: DeploymentSpec, report: Report, console: Console) -> str:
    """The same behind Triton, where each model is a process of its own."""
    started = time.monotonic()
    with running_server(spec, console, FREE_PORTS) as server, SpecDecodeClient(server.grpc_address) as client:
        ready = time.monotonic() - started
        said = compare(client.generate, report, "benchmark served")
    return f"an inference passed after {ready:.0f} s; stopped without error\n{said}"
