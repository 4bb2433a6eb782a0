"""Runs one long program: its output goes to a log file, its last line to the screen."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.errors import EngineError

LAST_LINES = 5
SHOWN_CHARS = 100


def run_program(what: str, command: Sequence[str], log: Path, progress: Callable[[str], None]) -> float:
    """Run `command` to its end.

    Args:
        what: for people: "target: compiling".
        log: takes the command and everything it prints; replaced.
        progress: told what, the time since the start and the last line, as lines come.

    Returns:
        Seconds that it took.

    Raises:
        EngineError: it could not be started or failed; with the end of its output and where the log is.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    last: list[str] = []
    with log.open("w", encoding="utf-8") as stream:
        stream.write(f"$ {' '.join(command)}\n")
        stream.flush()
        try:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise EngineError(f"{what}: {command[0]} cannot be started ({error.strerror})") from error
        assert process.stdout is not None
        try:
            for line in process.stdout:
                stream.write(line)
                stream.flush()
                if text := line.strip():
                    last = [*last[1 - LAST_LINES :], text]
                    progress(f"{what}, {time.monotonic() - started:.0f} s: {text[:SHOWN_CHARS]}")
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
    if status != 0:
        raise EngineError(f"{what} failed (status {status}): {' | '.join(last) or 'no output'} (log: {log})")
    return time.monotonic() - started
