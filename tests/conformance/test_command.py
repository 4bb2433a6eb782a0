"""`specdec conformance`: one line and status 1 where there is nothing to question; the table, JSON and status else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conformance_double import Double
from rich.console import Console
from typer.testing import CliRunner

from pipeline.client import conformance
from pipeline.client.cli import app
from pipeline.client.conformance import run_conformance
from pipeline.spec import DEFAULT_SPEC, DeploymentSpec


def test_no_server() -> None:
    """The error names the address."""
    result = CliRunner().invoke(app, ["conformance", "--url", "127.0.0.1:1", "--quick"])
    assert result.exit_code == 1
    assert "no server at 127.0.0.1:1" in result.output + (result.stderr or "")


def test_bad_prompts(tmp_path: Path) -> None:
    """Before anything is started."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"kind": "x"}\n')
    result = CliRunner().invoke(app, ["conformance", "--url", "127.0.0.1:1", "--prompts", str(path)])
    assert result.exit_code == 1
    assert "prompts.jsonl:1" in (result.output + (result.stderr or "")).replace("\n", "")


@pytest.mark.parametrize(("bug", "status"), [("", 0), ("greedy drift", 1)])
def test_exit_status(bug: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the checks find is what the command says."""
    monkeypatch.setattr(conformance, "ServedDeployment", lambda address, codec: _Closable(bug))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a cold winter", "the sea, the sand")))
    report, console = tmp_path / "report.json", Console(record=True, width=160)
    spec = DeploymentSpec.load(DEFAULT_SPEC)
    assert run_conformance(spec, console, "double:1", False, None, prompts, report, True) == status
    data = json.loads(report.read_text())
    assert data["exit_status"] == status
    assert "f stopping" in console.export_text()


class _Closable(Double):
    def close(self) -> None:
        pass
