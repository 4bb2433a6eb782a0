"""`specdec doctor`: the findings as a table or JSON, and an exit status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from pipeline.doctor.deployment import Deployment
from pipeline.doctor.examine import CHECKS, counts
from pipeline.doctor.finding import Finding
from pipeline.doctor.machine import Machine
from pipeline.planning.gpus import find_gpu
from pipeline.spec import DeploymentSpec

STYLES = {"error": "red", "warning": "yellow", "not checked": "cyan", "ok": "green"}


def run_doctor(spec: DeploymentSpec, gpu: str | None, as_json: bool, console: Console) -> int:
    """Examine, print. Returns the exit status: 0 without errors, else 1.

    Raises:
        InvalidRequestError: a GPU that is not known.
    """
    named = None if gpu is None else find_gpu(gpu)
    deployment = Deployment.read(spec, Machine.look(spec), named)
    findings: list[Finding] = []
    with Console(stderr=True).status("looking") as status:  # tokenizers of large vocabularies take seconds
        for check in CHECKS:
            status.update(f"looking at: {check.name}")
            findings += check.findings(deployment)
    if as_json:
        data = {"name": spec.name, "counts": counts(findings), "findings": [asdict(finding) for finding in findings]}
        console.print_json(json.dumps(data), highlight=False)
    else:
        _print(console, spec.name, findings)
    return 1 if counts(findings)["error"] else 0


def _print(console: Console, name: str, findings: Sequence[Finding]) -> None:
    table = Table(title=f"doctor: {name}", title_justify="left", title_style="bold", show_lines=False)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("finding")
    for finding in findings:
        lines = [finding.what]
        if finding.why:
            lines.append(f"why: {finding.why}")
        if finding.todo:
            lines.append(f"do: {finding.todo}")
        style = STYLES[finding.severity]
        table.add_row(finding.check, f"[{style}]{finding.severity}[/{style}]", "\n".join(lines).replace("[", r"\["))
    console.print(table, highlight=False)
    console.print(
        ", ".join(f"{number} {severity}" for severity, number in counts(findings).items() if number), highlight=False
    )
