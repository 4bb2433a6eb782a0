"""How a Triton server is to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.serving.launch import PLAIN, Launch
from pipeline.serving.ports import FREE_PORTS
from pipeline.serving.shared_memory import NO_LAWS
from pipeline.serving.shared_memory_need import LawTraffic
from pipeline.spec import PortsSpec


@dataclass(frozen=True)
class ServerOptions:
    """How a server runs.

    Attributes:
        ports: 0 takes a free one.
        requests: that run at once; sizes the Python backend's thread pool.
        shm_bytes: shared memory that each model starts with, in bytes; it grows by itself.
        laws: what it grows to under load; a start needs room for it.
        exit_timeout_s: what Triton grants running requests when it is stopped, in seconds.
        log_path: None: server.log beside the models.
        env: added to the environment of the server and its models.
        launch: what starts it, and what its engines need besides.
        arguments: further flags of tritonserver.
    """

    ports: PortsSpec = FREE_PORTS
    requests: int = 32
    shm_bytes: int = 16 << 20
    laws: LawTraffic = NO_LAWS
    exit_timeout_s: int = 5
    log_path: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    launch: Launch = PLAIN
    arguments: tuple[str, ...] = ()
