"""The report: a table for people, JSON for programs, an exit status for scripts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.conformance.check import FAILED, FALSE_ALARM, NOT_OFFERED, PASSED, Finding
from pipeline.conformance.facts import Facts

STYLES = {PASSED: "green", FAILED: "bold red", NOT_OFFERED: "yellow"}


def exit_status(findings: Sequence[Finding]) -> int:
    """0 where something passed and nothing failed."""
    statuses = {finding.status for finding in findings}
    return 0 if PASSED in statuses and FAILED not in statuses else 1


def print_report(console: Console, title: str, findings: Sequence[Finding], seconds: float) -> None:
    """A row per finding, and what the verdict is worth."""
    table = Table(title=title, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
    for column in ("part", "what", "result", "figures"):
        table.add_column(column, no_wrap=column in ("part", "result"))
    previous = ""
    for finding in findings:
        status = f"[{STYLES[finding.status]}]{finding.status}[/]"
        table.add_row(finding.part if finding.part != previous else "", finding.name, status, _plain(finding.detail))
        previous = finding.part
    console.print(table)
    counts = Counter(finding.status for finding in findings)
    console.print(
        f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[NOT_OFFERED]} not offered in {seconds:.0f} s. "
        f"A faultless deployment fails with a probability below {FALSE_ALARM:g}.",
        highlight=False,
    )


def write_json(path: Path, deployment: str, facts: Facts, findings: Sequence[Finding], seconds: float) -> None:
    """Everything in the table, and more figures."""
    report = {
        "deployment": deployment,
        "facts": asdict(facts),
        "false_alarm": FALSE_ALARM,
        "seconds": round(seconds, 1),
        "exit_status": exit_status(findings),
        "findings": [asdict(finding) for finding in findings],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")


def _plain(text: str) -> str:
    """Brackets are markup to rich."""
    return text.replace("[", "\\[")
