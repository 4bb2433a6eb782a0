"""perf_analyzer's ways, by a program that has them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.errors import ServerError
from pipeline.load import perf_analyzer as module
from pipeline.load.level import Level
from pipeline.load.perf_analyzer import PerfAnalyzer
from pipeline.load.tool import LoadRun

RECORDED = Path(__file__).parent / "recorded"


def measured(folder: Path, monkeypatch: pytest.MonkeyPatch, empty: int) -> list[list[str]]:
    """Prompts of each attempt, where so many attempts export an empty file and end with status 0."""
    program = folder / "perf_analyzer"
    recorded = RECORDED / "perf_analyzer.json"
    program.write_text(
        "#!/bin/sh\ncat prompts.json >> seen; echo >> seen; n=$(wc -l < seen)\n"
        f"if [ $n -le {empty} ]; then : > profile.json; else cp {recorded} profile.json; fi\n"
    )
    program.chmod(0o755)
    found = SimpleNamespace(path=program, environment=lambda: {"PATH": "/usr/bin:/bin"})
    monkeypatch.setattr(module, "find_perf_analyzer", lambda: found)
    run = LoadRun("h:1", Level("rate", 2), "speculative", ("one", "two"), 8, 0.0, False, ("target",), folder)
    PerfAnalyzer(30).measure(run)
    attempts = [json.loads(line)["data"] for line in (folder / "seen").read_text().splitlines()]
    return [[entry["text_input"][0] for entry in data] for data in attempts]


def test_an_empty_export_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other prompts: what was sent once is in the prefix cache."""
    assert measured(tmp_path, monkeypatch, 2) == [
        ["one", "two"],
        ["Attempt 2. one", "Attempt 2. two"],
        ["Attempt 3. one", "Attempt 3. two"],
    ]


def test_a_tool_that_never_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerError, match="is no profile export"):
        measured(tmp_path, monkeypatch, 99)
    assert len((tmp_path / "seen").read_text().splitlines()) == 6
