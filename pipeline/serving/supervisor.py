"""Keeps a server answering: loads a step model again that died or hangs, restarts the server for all else."""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pipeline.errors import ServerError
from pipeline.serving.contract import SPEC_DECODE_MODEL
from pipeline.serving.health import HealthLimits, ModelHealth, probe
from pipeline.serving.model_control import ModelControl
from pipeline.serving.server import TritonServer
from pipeline.serving.shared_memory import remove_orphans

OLD_LOG_SUFFIX = ".before-restart"

SERVES_AGAIN = "an inference has passed"


@dataclass(frozen=True)
class SupervisorLimits:
    """Bounds of a supervisor; times in seconds.

    Attributes:
        look_s: between two looks.
        health: how models are asked.
        grace_s: before a restart: running requests get their errors meanwhile.
        start_s: for a start.
        reload_s: for loading a model again; nobody looks after the others meanwhile.
        repairs: so many in `window_s`, and the next one gives up: what fails again and again needs a person.
    """

    look_s: float = 0.25
    health: HealthLimits = field(default_factory=HealthLimits)
    grace_s: float = 1.0
    start_s: float = 300.0
    reload_s: float = 60.0
    repairs: int = 5
    window_s: float = 600.0


class Supervisor:
    """Watches the models of a running server until it ends.

    A step model with a process of its own is loaded again under running requests: a dead draft costs them their
    speculation, a dead target ends those that were with it. Where that is not enough, and for the orchestrator and
    Triton itself, the server is started again on the same ports.

    Args:
        server: started and ready.
        models: names of its models, and whether each has a process of its own (is of the Python backend).
        control: whose flags the server was started with.
        say: told of everything that happens, a line each.
        limits: bounds.
    """

    def __init__(
        self,
        server: TritonServer,
        models: Mapping[str, bool],
        control: ModelControl,
        say: Callable[[str], None],
        limits: SupervisorLimits | None = None,
    ) -> None:
        self._server = server
        self._models = models
        self._control = control
        self._say = say
        self._limits = limits or SupervisorLimits()
        self._healths: dict[str, ModelHealth] = {}
        self._repairs: deque[float] = deque()
        self._ending = threading.Event()

    def run(self) -> None:
        """Watch until `stop`, or until the server was asked to end by somebody else.

        Raises:
            ServerError: it needed too many repairs, or could not be started again.
        """
        self._watch_all()
        try:
            while not self._ending.wait(self._limits.look_s):
                found = {name: text for name, health in self._healths.items() if (text := health.problem()) is not None}
                running = self._server.running
                if running and not found:
                    continue
                # On its way out it answers nobody, and a client's open stream may hold it up for ever.
                if self._server.exit_status == 0 or self._server.log.asked_to_stop():
                    return
                if not running:
                    self._restart(f"Triton ended by itself: {self._server.log.failure()}")
                    continue
                # Without its target the orchestrator cannot answer either: the step model is the cause.
                alone = [name for name in found if name != SPEC_DECODE_MODEL and self._models[name]]
                if alone:
                    self._reload(alone[0], found[alone[0]])
                else:
                    self._restart("; ".join(f"model {name}: {text}" for name, text in found.items()))
        finally:
            for health in self._healths.values():
                health.close()

    def stop(self) -> None:
        """Let `run` return soon; the server runs on."""
        self._ending.set()

    def _reload(self, model: str, problem: str) -> None:
        self._count(f"model {model}: {problem}")
        self._say(f"model {model}: {problem}; it is loaded again")
        started = time.monotonic()
        self._healths[model].close()
        self._healths[model].stub.kill()  # a process that hangs would keep `unload` waiting
        try:
            self._control.reload(self._server.http_address, model, self._limits.reload_s)
            # With too many calls that never returned the orchestrator refuses: only a restart gives it new threads.
            with suppress(TimeoutError):  # busy: the health checks go on
                probe(self._server.http_address, SPEC_DECODE_MODEL, self._limits.health.timeout_s)
        except ServerError as error:
            self._restart(str(error))
            return
        assert self._server.pid is not None
        remove_orphans(self._server.pid)
        self._watch_all()
        self._say(f"model {model}: loaded again after {time.monotonic() - started:.1f} s")

    def _restart(self, problem: str | None) -> None:
        started = time.monotonic()
        for health in self._healths.values():
            health.close()
        if self._server.running:
            self._ending.wait(self._limits.grace_s)
        while problem is not None:
            self._count(problem)
            self._say(f"{problem}; the server is started again")
            try:
                self._start_again()
                problem = None
            except ServerError as error:
                problem = str(error)
        self._watch_all()
        self._say(f"{SERVES_AGAIN} after {time.monotonic() - started:.1f} s, pid {self._server.pid}")

    def _start_again(self) -> None:
        self._server.stop(at_once=True)
        if self._server.log.path.exists():
            shutil.copyfile(self._server.log.path, f"{self._server.log.path}{OLD_LOG_SUFFIX}")
        self._server.start()
        self._server.wait_ready(self._limits.start_s)
        self._server.wait_inference()

    def _count(self, problem: str) -> None:
        """One more repair, unless there have been too many."""
        now = time.monotonic()
        while self._repairs and now - self._repairs[0] > self._limits.window_s:
            self._repairs.popleft()
        if len(self._repairs) >= self._limits.repairs:
            raise ServerError(
                f"{problem}; it was repaired {len(self._repairs)} times in {self._limits.window_s:g} s, which is the "
                f"limit (log: {self._server.log.path})"
            )
        self._repairs.append(now)

    def _watch_all(self) -> None:
        assert self._server.pid is not None
        for health in self._healths.values():
            health.close()
        self._healths = {
            model: ModelHealth(self._server.http_address, self._server.pid, model, own_process, self._limits.health)
            for model, own_process in self._models.items()
        }
