"""`make gpu-check [ENGINE=embedded]`: everything that needs a GPU, in one go, and one report to attach to an issue.

Builds the demo pair as TensorRT engines, serves it, questions it with `specdec conformance`, measures plain and
speculative decoding; `build/gpu_embedded.py` does as much for the embedded engine on CUDA. A step that fails does not
hide the others.

Usage: python build/gpu_check.py [--engine tensorrt_llm|embedded] [--spec SPEC] [--report FILE]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpu_embedded
from gpu_benchmark import compare
from gpu_report import Report
from gpu_steps import command, run
from tensorrt_install import TensorRTInstall, find_tensorrt

from pipeline import __version__
from pipeline.client.serve import repository_dir, running_server
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.errors import EngineError, SpecDecodeError
from pipeline.serving.ports import FREE_PORTS
from pipeline.serving.tensorrt_parameters import BACKEND
from pipeline.serving.triton_install import find_triton, require_backend
from pipeline.spec import ROOT, DeploymentSpec

SPEC = ROOT / "build" / "profiles" / "demo-tensorrt.yaml"
REPORT = ROOT / "runs" / "gpu-check" / "report.md"


def main() -> int:
    console = Console()
    arguments = argparse.ArgumentParser(description="Check engines on this machine's GPU.")
    arguments.add_argument("--engine", choices=("tensorrt_llm", "embedded"), default="tensorrt_llm")
    arguments.add_argument("--spec", type=Path, help="absent: the demo pair's profile of that engine")
    arguments.add_argument("--report", type=Path, default=REPORT)
    given = arguments.parse_args()
    embedded = given.engine == "embedded"
    path = given.spec or (gpu_embedded.SPEC if embedded else SPEC)
    try:
        spec = DeploymentSpec.load(path)
        facts = gpu_embedded.machine(gpu_embedded.require_gpu(spec)) if embedded else machine(require_gpu(spec))
    except SpecDecodeError as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        first = "install torch for CUDA" if embedded else "start the container"
        console.print(f"gpu-check has run nothing; docs/gpu.md says how to {first}", highlight=False)
        return 1
    report = Report(f"gpu-check of {spec.name}", facts)
    steps = gpu_embedded.check if embedded else check
    steps(spec, path, given.report.parent, report, console)
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_text(report.text())
    console.print(f"report: {given.report}", highlight=False, soft_wrap=True)
    return 0 if report.passed else 1


def require_gpu(spec: DeploymentSpec) -> TensorRTInstall:
    """What a check needs.

    Raises:
        SpecDecodeError: a GPU, TensorRT-LLM or the backend is missing, or the spec is of another engine kind.
    """
    if spec.engine != "tensorrt_llm":
        raise EngineError(
            f"{spec.name} is of engine: {spec.engine}; name a profile of engine: tensorrt_llm, or --engine"
        )
    install = find_tensorrt(spec.tensorrt_llm.container)
    require_backend(find_triton(), BACKEND)
    return install


def machine(install: TensorRTInstall) -> dict[str, str]:
    """What a reader of the report must know about where it ran."""
    return {
        "GPU": f"{install.gpu.name}, compute capability {install.gpu.compute_capability}",
        "driver": install.gpu.driver,
        "TensorRT-LLM": install.version,
        "TensorRT": install.tensorrt,
        "Triton": os.environ.get("NVIDIA_TRITON_SERVER_VERSION", "unknown"),
        "specdec": __version__,
        "Python": platform.python_version(),
        "kernel": platform.release(),
    }


def check(spec: DeploymentSpec, spec_path: Path, folder: Path, report: Report, console: Console) -> None:
    """Run every step into `report`; without engines or a server there is nothing more to run."""
    folder.mkdir(parents=True, exist_ok=True)
    if not run(report, console, "engines", lambda: command(["engines", "--spec", str(spec_path)])):
        for log in sorted((spec.engines_dir / "logs").glob("*.log")):
            report.add_log(log.name, log)
        return

    def serve() -> str:
        with running_server(spec, console, FREE_PORTS) as server:
            address, ready = server.grpc_address, time.monotonic() - started
            run(report, console, "conformance", lambda: conformance(spec_path, address, folder))
            run(report, console, "benchmark", lambda: benchmark(address, report))
        return f"an inference passed after {ready:.0f} s; stopped without error"

    started = time.monotonic()
    if not run(report, console, "serve", serve):
        report.add_log("Triton's log", repository_dir(spec).parent / "server.log")


def conformance(spec_path: Path, address: str, folder: Path) -> str:
    """`specdec conformance` of the running server."""
    found = folder / "conformance.json"
    return command(["conformance", "--spec", str(spec_path), "--url", address, "--quick", "--json", str(found)])


def benchmark(address: str, report: Report) -> str:
    """Greedy answers of the running server."""
    with SpecDecodeClient(address) as client:
        return compare(client.generate, report)


if __name__ == "__main__":
    sys.exit(main())
