"""`make gpu-check`: everything that needs a GPU, in one go, and one report to attach to an issue.

Builds the demo pair as TensorRT engines, serves it, questions it with `specdec conformance`, measures plain and
speculative decoding. A step that fails does not hide the others.

Usage: python build/gpu_check.py [--spec SPEC] [--report FILE]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_report import Report, Step
from tensorrt_install import TensorRTInstall, find_tensorrt

from pipeline import __version__
from pipeline.client.prompts import load_prompts
from pipeline.client.serve import repository_dir, running_server
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.errors import EngineError, SpecDecodeError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.serving.ports import FREE_PORTS
from pipeline.serving.tensorrt_parameters import BACKEND
from pipeline.serving.triton_install import find_triton, require_backend
from pipeline.spec import ROOT, DeploymentSpec

SPEC = ROOT / "build" / "profiles" / "demo-tensorrt.yaml"
REPORT = ROOT / "runs" / "gpu-check" / "report.md"
KINDS = ("quote", "json", "code", "chat")
MAX_TOKENS = 96
TAIL_CHARS = 6000


@dataclass(frozen=True)
class Measurement:
    """One prompt, greedy, plain (K = 0) and with the controller's K."""

    kind: str
    plain_tokens_per_s: float
    speculative_tokens_per_s: float
    mean_acceptance_length: float
    equal: bool  # the same text

    @property
    def speedup(self) -> float:
        return self.speculative_tokens_per_s / self.plain_tokens_per_s


def main() -> int:
    console = Console()
    arguments = argparse.ArgumentParser(description="Check TensorRT engines on this machine's GPU.")
    arguments.add_argument("--spec", type=Path, default=SPEC)
    arguments.add_argument("--report", type=Path, default=REPORT)
    given = arguments.parse_args()
    try:
        spec = DeploymentSpec.load(given.spec)
        install = require_gpu(spec)
    except SpecDecodeError as error:
        console.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        console.print("gpu-check has run nothing; docs/gpu.md says how to start the container", highlight=False)
        return 1
    report = Report(f"gpu-check of {spec.name}", machine(install))
    check(spec, given.spec, given.report.parent, report, console)
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
        raise EngineError(f"engine: {spec.engine} needs no gpu-check; name a profile of engine: tensorrt_llm")
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


def run(report: Report, console: Console, name: str, work: Callable[[], str]) -> bool:
    """One step: what it says where it ends well, what went wrong where it does not."""
    console.print(f"{name} ...", highlight=False)
    started = time.monotonic()
    try:
        passed, said = True, work()
    except SpecDecodeError as error:
        passed, said = False, str(error)
    except Exception:  # a fault of ours belongs into the report, too
        passed, said = False, traceback.format_exc()
    report.add(Step(name, passed, time.monotonic() - started, said))
    console.print(f"{name}: {'passed' if passed else 'FAILED'}", style="green" if passed else "red", highlight=False)
    return passed


def command(arguments: list[str]) -> str:
    """Run a `specdec` command, shown as it goes. Returns the end of its output.

    Raises:
        EngineError: it failed; with the end of its output.
    """
    words = [sys.executable, "-m", "pipeline.client.cli", *arguments]
    env = {**os.environ, "COLUMNS": "120"}  # as wide as the report
    process = subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        output = (output + line)[-TAIL_CHARS:]
    if process.wait() != 0:
        raise EngineError(f"specdec {' '.join(arguments)} ended with status {process.returncode}:\n{output}")
    return output


def conformance(spec_path: Path, address: str, folder: Path) -> str:
    """`specdec conformance` of the running server."""
    found = folder / "conformance.json"
    return command(["conformance", "--spec", str(spec_path), "--url", address, "--quick", "--json", str(found)])


def benchmark(address: str, report: Report) -> str:
    """Greedy answers, plain and speculative. The figures go into the report as they are."""
    prompts = {prompt.kind: prompt.text for prompt in reversed(load_prompts())}
    with SpecDecodeClient(address) as client:
        found = [measure(client, kind, prompts[kind]) for kind in KINDS]
    report.data["benchmark"] = [{**asdict(one), "speedup": round(one.speedup, 3)} for one in found]
    lines = [
        f"{one.kind}: {one.plain_tokens_per_s:.1f} -> {one.speculative_tokens_per_s:.1f} tokens/s, {one.speedup:.2f}x; "
        f"acceptance length {one.mean_acceptance_length:.2f}, texts {'equal' if one.equal else 'differ'}"
        for one in found
    ]
    return "\n".join(lines)


def measure(client: SpecDecodeClient, kind: str, text: str) -> Measurement:
    """Ask twice each way and take the second: the first fills caches and captures graphs."""
    answers: dict[int | None, tuple[float, tuple[int, ...], dict[str, Any]]] = {}
    for k in (0, None, 0, None):
        started = time.perf_counter()
        replies = list(client.generate(GenerationRequest(text, MAX_TOKENS, chat=True, stream=True, num_draft_tokens=k)))
        seconds = time.perf_counter() - started
        tokens = tuple(token for reply in replies for token in reply.token_ids)
        answers[k] = len(tokens) / seconds, tokens, replies[-1].statistics or {}
    plain, speculative = answers[0], answers[None]
    return Measurement(
        kind=kind,
        plain_tokens_per_s=plain[0],
        speculative_tokens_per_s=speculative[0],
        mean_acceptance_length=float(speculative[2].get("mean_acceptance_length", 0.0)),
        equal=plain[1] == speculative[1],
    )


if __name__ == "__main__":
    sys.exit(main())
