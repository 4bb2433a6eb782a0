"""The report of `make gpu-check`: one Markdown file, readable as it is, with the figures as JSON at its end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOG_LINES = 80


@dataclass(frozen=True)
class Step:
    """One thing that was tried.

    Attributes:
        said: what it printed, or what went wrong.
    """

    name: str
    passed: bool
    seconds: float
    said: str


@dataclass
class Report:
    """What ran, where, and how it went.

    Attributes:
        machine: versions and hardware, by name.
        data: figures for machines to read.
    """

    title: str
    machine: dict[str, str]
    steps: list[Step] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)

    def add_log(self, name: str, path: Path) -> None:
        """Quote the end of a log; one that is not there is left out."""
        if path.is_file():
            self.logs[name] = "\n".join(path.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def add(self, step: Step) -> None:
        self.steps.append(step)

    @property
    def passed(self) -> bool:
        """Every step ended well, and there was one."""
        return bool(self.steps) and all(step.passed for step in self.steps)

    def text(self) -> str:
        """The whole report."""
        lines = [f"# {self.title}: {'passed' if self.passed else 'FAILED'}", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in self.machine.items()]
        lines += ["", "| step | result | seconds |", "|---|---|---|"]
        lines += [
            f"| {step.name} | {'passed' if step.passed else 'FAILED'} | {step.seconds:.0f} |" for step in self.steps
        ]
        for name, said in [*((step.name, step.said) for step in self.steps), *self.logs.items()]:
            # Four backticks: what is quoted may hold three.
            lines += ["", f"## {name}", "", "````", said.strip(), "````"]
        figures = {
            "machine": self.machine,
            "steps": {step.name: {"passed": step.passed, "seconds": round(step.seconds, 1)} for step in self.steps},
            **self.data,
        }
        lines += ["", "## Figures", "", "```json", json.dumps(figures, indent=2), "```"]
        return "\n".join(lines) + "\n"
