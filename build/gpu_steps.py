"""Steps of `make gpu-check`: each is shown as it goes and ends in the report, whatever becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable

from gpu_report import Report, Step
from rich.console import Console

from pipeline.errors import EngineError, SpecDecodeError
from pipeline.spec import ROOT

TAIL_CHARS = 6000


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
    return program(["-m", "pipeline.client.cli", *arguments], f"specdec {' '.join(arguments)}")


def program(words: list[str], name: str, limit_s: float | None = None) -> str:
    """Run Python with `words`, shown as it goes. Returns the end of its output.

    Args:
        name: for errors.
        limit_s: seconds after which it is killed.

    Raises:
        EngineError: it failed, or took too long; with the end of its output.
    """
    env = {**os.environ, "COLUMNS": "120"}  # as wide as the report
    process = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    late = threading.Timer(limit_s or 0.0, process.kill)
    if limit_s is not None:
        late.start()
    assert process.stdout is not None
    output = ""
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            output = (output + line)[-TAIL_CHARS:]
        status = process.wait()
    finally:
        killed = limit_s is not None and late.finished.is_set()
        late.cancel()
    if killed:
        raise EngineError(f"{name} did not end within {limit_s:g} s:\n{output}")
    if status != 0:
        raise EngineError(f"{name} ended with status {status}:\n{output}")
    return output
