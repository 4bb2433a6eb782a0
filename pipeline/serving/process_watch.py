"""Inside the orchestrator's process: calls of a step model whose process died end at once, not at their deadline."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from pipeline.serving.stubs import StubProcess

LOOK_S = 0.25


class FailsCalls(Protocol):
    """What the watch needs of a step model."""

    def fail_running(self, reason: str, begun_before: float) -> None:
        """End the calls that began before a time with an error."""


class ProcessWatch:
    """Looks after the processes of the step models, a few times a second.

    Args:
        models: by the names of their Triton models.
        server_pid: of tritonserver, whose children they are.
    """

    def __init__(self, models: Mapping[str, FailsCalls], server_pid: int) -> None:
        self._models = models
        self._stubs = {name: StubProcess(server_pid, name) for name in models}
        self._ending = threading.Event()
        threading.Thread(target=self._run, name="process-watch", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_S):
            for name, stub in self._stubs.items():
                if not stub.found or stub.died:
                    # Until Triton notices, calls to a dead process begin, and hang as well: all that are under way are
                    # lost, but for those that a new process may have got.
                    stub.find()
                    self._models[name].fail_running("its process died", begun_before=stub.serves_since)
