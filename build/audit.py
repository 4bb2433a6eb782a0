"""Audits what is installed: known vulnerabilities by pip-audit, licences by the packages' own metadata.

Usage: python build/audit.py
Status 0: every package was looked up and none has a known vulnerability; 1: one has; 2: some could not be looked up.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / ".cache" / "audit"
REQUIREMENTS = Path(__file__).with_name("audit-requirements.txt")
OWN = "specdec"
CLEAN, VULNERABLE, UNKNOWN = 0, 1, 2

console = Console()


def main() -> int:
    """Print licences, then findings. Returns the exit status."""
    installed = {found.metadata["Name"]: found for found in distributions() if found.metadata["Name"] != OWN}
    console.print(licence_table(installed))
    with console.status("looking up vulnerabilities"):
        report = look_up(installed)
    if report is None:
        console.print(
            f"error: pip-audit could not be installed or run: nothing of {len(installed)} packages was audited"
        )
        return UNKNOWN
    lines, status = verdict(report)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return status


def verdict(report: dict[str, Any]) -> tuple[list[str], int]:
    """What pip-audit's JSON says. It calls a package that no service knows neither good nor bad, and exits with 0."""
    lines, skipped, audited = [], [], 0
    for entry in report["dependencies"]:
        if "skip_reason" in entry:
            skipped.append(entry["name"])
            continue
        audited += 1
        for found in entry["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "no version"
            lines.append(f"{entry['name']} {entry['version']}: {found['id']}, fixed in {fixed}")
    status = VULNERABLE if lines else UNKNOWN if skipped or not audited else CLEAN
    lines.append(f"{audited} packages looked up, {len(lines)} known vulnerabilities")
    if skipped:
        lines.append(
            f"NOT audited, {len(skipped)} (the service did not know them, or was not reached): {', '.join(skipped)}"
        )
    return lines, status


def look_up(installed: dict[str, Distribution]) -> dict[str, Any] | None:
    """pip-audit's report on exactly these versions; None where there is none."""
    tool = TOOL / "bin" / "pip-audit"
    if not tool.is_file():
        pip = [str(TOOL / "bin" / "python"), "-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS)]
        for command in ([sys.executable, "-m", "venv", "--clear", str(TOOL)], pip):
            if subprocess.run(command, capture_output=True).returncode != 0:
                return None
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        # A local version such as +cpu is known to no advisory.
        wanted.writelines(f"{name}=={found.version.partition('+')[0]}\n" for name, found in installed.items())
        wanted.flush()
        flags = ["--disable-pip", "--no-deps", "--format", "json", "--progress-spinner", "off"]
        done = subprocess.run([str(tool), "--requirement", wanted.name, *flags], capture_output=True, text=True)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None
    return report


def licence_table(installed: dict[str, Distribution]) -> Table:
    """Packages by licence."""
    by_licence: defaultdict[str, list[str]] = defaultdict(list)
    for name, found in installed.items():
        by_licence[licence(found)].append(name)
    table = Table("licence", "packages", title=f"{len(installed)} packages")
    for name, packages in sorted(by_licence.items(), key=lambda item: -len(item[1])):
        table.add_row(name, ", ".join(sorted(packages)))
    return table


def licence(found: Distribution) -> str:
    """As the package says it: its SPDX expression, its classifiers, or its licence field."""
    expression = found.metadata.get("License-Expression")
    if expression:
        return expression
    prefix = "License :: OSI Approved :: "
    classified = [text.removeprefix(prefix) for text in found.metadata.get_all("Classifier") or () if prefix in text]
    lines = (found.metadata.get("License") or "").strip().splitlines()
    return ", ".join(classified) or (lines[0][:60] if lines else "not stated")


if __name__ == "__main__":
    sys.exit(main())
