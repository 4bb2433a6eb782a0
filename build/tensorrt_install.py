"""Finds the TensorRT-LLM of this machine and refuses one that cannot compile engines."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pipeline.errors import EngineError
from pipeline.planning.gpu_support import unsupported
from pipeline.spec import DeploymentSpec, Role
from pipeline.tensorrt_spec import RELEASE

PROGRAM = "trtllm-build"
OLDEST = (1, 2, 0)
# 1.3.0rc20 is the last release with engines: TensorRT-LLM release notes, June 2026.
ENGINES_REMOVED = (1, 3, 0, 21)
NEXT = (1, 3, 0, 0)  # its engines would be refused when they are served: only 1.2.x are known
FINAL = 1 << 30  # a release sorts after its candidates
TENSORRT_PACKAGES = ("tensorrt", "tensorrt_cu13", "tensorrt_cu12")
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.?rc(\d+))?")
_HELP_TIMEOUT_S = 300.0  # it imports torch and TensorRT first


@dataclass(frozen=True)
class LocalGpu:
    """The first GPU: an engine is compiled for its kind."""

    name: str
    compute_capability: str  # "9.0"
    driver: str


@dataclass(frozen=True)
class TensorRTInstall:
    """A TensorRT-LLM that compiles engines."""

    version: str
    tensorrt: str
    program: Path  # trtllm-build
    python: str  # the interpreter that has the packages; conversion scripts run with it
    gpu: LocalGpu


def find_tensorrt(container: str) -> TensorRTInstall:
    """Look for trtllm-build, its version and a GPU.

    Args:
        container: the image to name in errors.

    Raises:
        EngineError: TensorRT-LLM is absent, too old or too new, or there is no GPU; says what to do.
    """
    found = shutil.which(PROGRAM)
    if found is None:
        raise EngineError(
            f"{PROGRAM} is not on PATH: engine: tensorrt_llm needs a GPU and TensorRT-LLM {RELEASE}; run this inside "
            f"{container} (docs/gpu.md), or set DRY_RUN=1 to print the commands"
        )
    python = _interpreter(Path(found))
    versions = _package_versions(python)
    version = versions.get("tensorrt_llm")
    if version is None:
        raise EngineError(
            f"{found}: its Python ({python}) has no tensorrt_llm package; reinstall TensorRT-LLM {RELEASE}"
        )
    check_version(version, container)
    tensorrt = next((versions[name] for name in TENSORRT_PACKAGES if name in versions), "unknown")
    return TensorRTInstall(version, tensorrt, Path(found), python, find_gpu())


def check_version(version: str, container: str) -> None:
    """Refuse a TensorRT-LLM that cannot compile the engines this release serves.

    Raises:
        EngineError: with what to install instead.
    """
    match = _VERSION.match(version)
    if match is None:
        raise EngineError(f"TensorRT-LLM version {version!r} is not understood; this release needs {RELEASE}")
    numbers = (*map(int, match.groups()[:3]), int(match[4]) if match[4] else FINAL)
    if numbers < (*OLDEST, FINAL):
        raise EngineError(f"TensorRT-LLM {version} is too old; use {RELEASE} (the image {container} has it)")
    if numbers >= ENGINES_REMOVED:
        raise EngineError(
            f"TensorRT-LLM {version} compiles no engines any more (removed in 1.3.0rc21); use {RELEASE} "
            f"(the image {container} has it)"
        )
    if numbers >= NEXT:
        raise EngineError(f"TensorRT-LLM {version} is no 1.2.x; use {RELEASE} (the image {container} has it)")


def find_gpu() -> LocalGpu:
    """The first GPU, as nvidia-smi tells.

    Raises:
        EngineError: there is none, or no driver.
    """
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60)
        name, capability, driver = [part.strip() for part in done.stdout.splitlines()[0].split(",")]
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        raise EngineError(
            "no GPU found (nvidia-smi is missing or lists none): engines are compiled on the kind of GPU that serves "
            "them; start the container with --gpus all"
        ) from None
    return LocalGpu(name, capability, driver)


def require_gpu_support(spec: DeploymentSpec, roles: Sequence[Role], gpu: LocalGpu) -> None:
    """See that the engines of `roles` can be compiled for a GPU.

    Raises:
        EngineError: naming the model, its weights and the GPU.
    """
    for role in roles:
        why = unsupported(spec.step_model(role).weights, gpu.compute_capability)
        if why is not None:
            raise EngineError(f"{role} on {gpu.name}: {why}")


class FlagCheck:
    """Asks programs which flags they know: a typo must not cost hours. Each is asked once; the answer takes a while."""

    def __init__(self) -> None:
        self._help: dict[tuple[str, ...], str] = {}

    def check(self, program: Sequence[str], arguments: Sequence[str]) -> None:
        """See that a program knows every flag, and every value that it has a list for.

        Args:
            program: how it is started, without arguments.
            arguments: "--flag", "value" ... as they will be passed.

        Raises:
            EngineError: naming the flags, or the value and what is allowed.
        """
        text, name = self._help_of(program), " ".join(program)
        known = set(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", text))
        unknown = [word for word in arguments if word.startswith("--") and word not in known]
        if unknown:
            raise EngineError(
                f"{name} of this installation does not know {', '.join(unknown)}; this release is written for "
                f"TensorRT-LLM {RELEASE}"
            )
        for flag, value in pairwise(arguments):
            choices = re.search(rf"{re.escape(flag)}\s+\{{([^}}]*)\}}", text) if flag.startswith("--") else None
            allowed = [] if choices is None else ["".join(choice.split()) for choice in choices[1].split(",")]
            if allowed and value not in allowed:
                raise EngineError(f"{flag} {value}: {name} of this installation allows {', '.join(allowed)}")

    def _help_of(self, program: Sequence[str]) -> str:
        key = tuple(program)
        if key not in self._help:
            command = [*program, "--help"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_HELP_TIMEOUT_S)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise EngineError(f"{' '.join(command)} cannot be run: {error}") from error
            if done.returncode != 0:
                words = " ".join((done.stderr or done.stdout).split())[-500:]
                raise EngineError(f"{' '.join(command)} failed (status {done.returncode}): {words}")
            self._help[key] = done.stdout
        return self._help[key]


def _interpreter(program: Path) -> str:
    """A console script names the Python that has its package in its first line."""
    with program.open("rb") as stream:
        line = stream.readline(4096).decode(errors="replace").strip()
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    if words and "python" in Path(words[-1]).name:
        return words[-1]
    return "python3"


def _package_versions(python: str) -> dict[str, str]:
    # By metadata: importing tensorrt_llm takes tens of seconds.
    names = ("tensorrt_llm", *TENSORRT_PACKAGES)
    script = (
        "import importlib.metadata as m\n"
        f"for name in {names!r}:\n"
        "    try: print(name, m.version(name))\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    try:
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"the Python of {PROGRAM} ({python}) cannot be started: {error}") from error
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if " " in line)
