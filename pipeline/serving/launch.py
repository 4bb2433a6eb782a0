"""How Triton is started for a deployment: leader or orchestrator mode of NVIDIA's backend.

Source: NVIDIA TensorRT-LLM 1.2, `triton_backend/scripts/launch_triton_server.py`, and docs on leader and orchestrator
mode. One process can hold several models of one rank each (leader mode, no MPI). Models of several ranks need a process
per rank: in orchestrator mode Triton spawns them itself, each model with its own number of ranks, under `mpirun`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.errors import ServerError
from pipeline.spec import DeploymentSpec

Mode = Literal["python", "leader", "orchestrator"]
# One or two processes are bound to a core each unless mpirun is told otherwise: the server, the orchestrator's workers
# and the ranks they spawn would share one.
MPIRUN = ("mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "1")
# Triton 2.51 reads a JSON body by recursion, and with the usual 8 MB stack 50,000 lists in one another ended it with a
# segmentation fault; with this one it refuses 600,000. A thread takes what it uses of it.
DEEP_STACK = f"ulimit -S -s {256 << 10} 2>/dev/null"
ORCHESTRATOR_ENV = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}


@dataclass(frozen=True)
class Launch:
    """What is added to a plain start of tritonserver.

    Attributes:
        mode: `python` where no model runs on NVIDIA's backend.
        wrapper: program and arguments that start tritonserver; empty for none.
        arguments: further flags of tritonserver.
        env: added to its environment.
        gpu: whether a GPU serves, whose metrics Triton then reports.
    """

    mode: Mode
    wrapper: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = False


PLAIN = Launch("python")


def launch_of(spec: DeploymentSpec) -> Launch:
    """The launch that a spec needs."""
    if spec.engine != "tensorrt_llm":
        return PLAIN
    parts = [spec.step_model(role) for role in spec.model_roles]
    if all(part.world_size == 1 for part in parts):
        return Launch("leader", gpu=True)
    devices = sorted({device for part in parts for device in part.device_ids})
    # The spawned ranks hold the GPUs; the server's own pools on them would only take memory away.
    pools = tuple(f"--cuda-memory-pool-byte-size={device}:0" for device in devices)
    return Launch(
        "orchestrator",
        wrapper=MPIRUN,
        arguments=("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools),
        env=ORCHESTRATOR_ENV,
        gpu=True,
    )


def require_launcher(launch: Launch) -> None:
    """See that what starts tritonserver is there.

    Raises:
        ServerError: it is not, with what it is for.
    """
    if launch.wrapper and shutil.which(launch.wrapper[0]) is None:
        raise ServerError(
            f"{launch.wrapper[0]} is not on PATH: models of several ranks are started by it ({launch.mode} mode); "
            "serve this inside NVIDIA's TensorRT-LLM container (docs/gpu.md)"
        )


def thread_pool_size(requests: int) -> int:
    """Threads of a model's pool for so many requests at once: BLS calls and response sends share it."""
    return 2 * requests + 8
