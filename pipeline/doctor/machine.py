"""The machine as the checks see it. Tests make one by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata

import psutil

from pipeline.errors import ServerError
from pipeline.serving.ports import choose_ports
from pipeline.serving.server_lock import read_record
from pipeline.serving.shared_memory import SHM
from pipeline.spec import DeploymentSpec, PortsSpec

MIB = 1 << 20
_QUERY = [
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,compute_cap,driver_version",
    "--format=csv,noheader,nounits",
]
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class SeenGpu:
    """A GPU as the driver shows it."""

    index: int
    name: str
    memory: float  # bytes
    architecture: str  # compute capability
    driver: str


@dataclass(frozen=True)
class Machine:
    """What is here.

    Attributes:
        tensorrt_llm: its version in this Python; None where it is not installed.
        triton: version of NVIDIA's Triton container that this runs in; None outside.
        shm_free: bytes of shared memory; None where there is none.
        busy_port: why a port of the spec cannot be had; None where all can.
        served_by: process id of this spec's own running server; None where it does not run.
    """

    gpus: tuple[SeenGpu, ...] = ()
    tensorrt_llm: str | None = None
    triton: str | None = None
    shm_free: int | None = None
    busy_port: str | None = None
    served_by: int | None = None

    @classmethod
    def look(cls, spec: DeploymentSpec) -> Machine:
        """Look at this machine."""
        record = read_record(spec.engines_dir)
        return cls(
            gpus=_gpus(),
            tensorrt_llm=_version("tensorrt_llm"),
            triton=os.environ.get("NVIDIA_TRITON_SERVER_VERSION"),
            shm_free=_shm_free(),
            busy_port=_busy_port(spec.ports),
            served_by=record.pid if record is not None and psutil.pid_exists(record.pid) else None,
        )


def _gpus() -> tuple[SeenGpu, ...]:
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_gpus(done.stdout) if done.returncode == 0 else ()


def parse_gpus(listing: str) -> tuple[SeenGpu, ...]:
    """Lines of nvidia-smi's CSV, memory in MiB; lines that are something else are no GPUs."""
    found = []
    for line in listing.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 5 and parts[0].isdigit() and parts[2].isdigit():
            found.append(SeenGpu(int(parts[0]), parts[1], int(parts[2]) * MIB, parts[3], parts[4]))
    return tuple(found)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _shm_free() -> int | None:
    try:
        return shutil.disk_usage(SHM).free
    except OSError:
        return None


def _busy_port(ports: PortsSpec) -> str | None:
    try:
        choose_ports(ports)
    except ServerError as error:
        return str(error)
    return None
