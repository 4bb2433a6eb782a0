"""A program that puts load on a server, and what it is told."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ServerError
from pipeline.load.figures import LoadFigures, Mode
from pipeline.load.level import Level


@dataclass(frozen=True)
class LoadRun:
    """One run of a tool.

    Attributes:
        address: host:port of gRPC.
        level: how requests arrive.
        mode: plain or speculative.
        texts: a prompt per request.
        max_tokens: of an answer.
        temperature: 0 is greedy.
        chat: the server applies the target's chat template.
        composing: names of the step models whose calls are counted.
        folder: where the tool may write; made for this run.
    """

    address: str
    level: Level
    mode: Mode
    texts: tuple[str, ...]
    max_tokens: int
    temperature: float
    chat: bool
    composing: tuple[str, ...]
    folder: Path


class LoadTool(ABC):
    """Sends a request per text and measures.

    Args:
        timeout_s: longest run, in seconds.
    """

    name: str

    def __init__(self, timeout_s: float = 1800.0) -> None:
        self._timeout_s = timeout_s

    @abstractmethod
    def measure(self, run: LoadRun) -> LoadFigures:
        """Raises: ServerError: the tool failed; its words are in the message."""

    def start(self, command: Sequence[str], env: Mapping[str, str], folder: Path) -> str:
        """Run the program to its end in a folder. Returns what it printed.

        Raises:
            ServerError: it failed, or took too long.
        """
        try:
            done = subprocess.run(
                command, env=dict(env), cwd=folder, capture_output=True, text=True, timeout=self._timeout_s
            )
        except subprocess.TimeoutExpired as error:
            raise ServerError(f"{self.name} did not end within {self._timeout_s:g} s") from error
        except OSError as error:
            raise ServerError(f"{self.name} cannot be started: {error}") from error
        printed = done.stdout + done.stderr
        (folder / "tool.log").write_text(printed)
        if done.returncode != 0:
            raise ServerError(f"{self.name} failed ({done.returncode}): {_last_words(done)}")
        return printed


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    # After an error perf_analyzer prints its whole help.
    lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "fail" in line.lower()]
    return "; ".join((errors or lines)[:3])
