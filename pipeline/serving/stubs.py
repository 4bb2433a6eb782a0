"""Processes of Triton's Python backend: one stub per model, a child of tritonserver."""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import suppress
from pathlib import Path

import psutil

STUB_NAME = "triton_python_backend_stub"
_IMPORT_S = 0.1  # between the start of a stub and its first call at least: it starts a Python and imports a model


class StubProcess:
    """The process of one model.

    Triton says that a model is ready whose process has died, so whoever wants to know looks for himself. The process is
    searched for once and then remembered: looking through all processes costs milliseconds.

    Args:
        server_pid: of tritonserver, or of what started it.
        model: its name.
    """

    def __init__(self, server_pid: int, model: str) -> None:
        self._server_pid = server_pid
        self._instance = re.compile(rf"{re.escape(model)}_\d+_\d+")  # an argument of the stub
        self._process: psutil.Process | None = None

    def find(self) -> bool:
        """Look for the process again. False where there is none: dead, or no model of the Python backend."""
        self._process = None
        with suppress(psutil.Error):
            for process in psutil.Process(self._server_pid).children(recursive=True):
                with suppress(psutil.Error):  # it may end while we look
                    # The kernel cuts names to 15 characters.
                    is_stub = STUB_NAME.startswith(process.name()[:15])
                    if is_stub and any(map(self._instance.fullmatch, process.cmdline())) and _lives(process):
                        self._process = process
        return self._process is not None

    @property
    def found(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Of the process that was found."""
        return None if self._process is None else int(self._process.pid)

    @property
    def died(self) -> bool:
        """Whether the process that was found lives no more."""
        return self._process is not None and not _lives(self._process)

    @property
    def serves_since(self) -> float:
        """Before this moment of `time.monotonic` it cannot have taken a call; infinity where there is none.

        From the kernel's ticks since boot (proc(5), stat, field 22): psutil's creation time may be a second off.
        """
        if self._process is not None:
            with suppress(OSError):
                fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
                age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
                return time.monotonic() - age + _IMPORT_S
        return math.inf

    @property
    def cpu_s(self) -> float:
        """Processor time that it has used, in seconds; 0.0 where there is none."""
        if self._process is not None:
            with suppress(psutil.Error):
                times = self._process.cpu_times()
                return float(times.user + times.system)
        return 0.0

    def kill(self) -> None:
        """End it at once; does nothing where it is gone."""
        if self._process is not None:
            with suppress(psutil.Error):
                self._process.kill()


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
