"""`make gpu-check`: refused without a GPU; its report says what failed and shows the rest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_check
import pytest
from gpu_benchmark import KINDS, measure
from gpu_check import Report, benchmark, check, command, run
from rich.console import Console

from pipeline.client.triton_client import Reply
from pipeline.errors import EngineError, ServerError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.spec import DEFAULT_SPEC, ROOT, DeploymentSpec

QUIET = Console(quiet=True)


@pytest.mark.skipif(shutil.which("trtllm-build") is not None, reason="this machine could really run it")
@pytest.mark.parametrize("make", [True, False], ids=["make", "script"])
def test_without_a_gpu(make: bool, tmp_path: Path) -> None:
    """One clear line, a status, and no report that could be taken for one."""
    here = Path(sys.executable)
    by_make = ["make", "-s", "gpu-check", f"SPECDEC_BIN={here.parent}", f"PYTHON={here}"]
    by_hand = [str(here), "build/gpu_check.py", "--report", str(tmp_path / "report.md")]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    done = subprocess.run(by_make if make else by_hand, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "error: trtllm-build is not on PATH" in done.stdout and "TensorRT-LLM 1.2.1" in done.stdout
    assert "gpu-check has run nothing" in done.stdout and "Traceback" not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


def test_a_spec_of_the_other_engine() -> None:
    with pytest.raises(
        EngineError, match="demo is of engine: embedded; name a profile of engine: tensorrt_llm, or --engine"
    ):
        gpu_check.require_gpu(DeploymentSpec.load(DEFAULT_SPEC))


def test_steps_and_their_faults() -> None:
    """What ends well, an error that a user can act on, and a fault of ours, all in one report."""
    report = Report("a check", {"GPU": "none"})
    assert not report.passed

    def refuse() -> str:
        raise ServerError("no such backend")

    assert run(report, QUIET, "one", lambda: "fine")
    assert report.passed
    assert not run(report, QUIET, "two", refuse)
    assert not run(report, QUIET, "three", lambda: str(1 // 0))
    text = report.text()
    assert not report.passed and text.startswith("# a check: FAILED")
    assert "no such backend" in text and "ZeroDivisionError" in text and "| one | passed |" in text
    figures = json.loads(text.split("```json\n")[1].split("```")[0])
    assert {name: step["passed"] for name, step in figures["steps"].items()} == {
        "one": True,
        "two": False,
        "three": False,
    }


def test_a_failed_build_ends_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is served, and the builders' logs are in the report."""
    monkeypatch.setattr("pipeline.spec.ROOT", tmp_path)
    spec = DeploymentSpec.load(gpu_check.SPEC)
    log = spec.engines_dir / "logs" / "target.build.log"
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(f"line {i}" for i in range(200)))

    def fail(arguments: list[str]) -> str:
        raise EngineError(f"{arguments[0]} failed")

    monkeypatch.setattr(gpu_check, "command", fail)
    report = Report("a check", {})
    check(spec, gpu_check.SPEC, tmp_path / "out", report, QUIET)
    assert [step.name for step in report.steps] == ["engines"]
    text = report.text()
    assert "engines failed" in text and "line 199" in text and "line 100\n" not in text


def test_a_command_that_fails() -> None:
    """The end of its output is what the report gets."""
    with pytest.raises(EngineError, match=r"ended with status 1:\n.*spec .*nowhere\.yaml cannot be read") as caught:
        command(["repo", "--spec", "nowhere.yaml"])
    assert "Traceback" not in str(caught.value)


class ScriptedClient:
    """Answers of eight tokens; speculation changes the text of one prompt."""

    def __init__(self, address: str = "") -> None:
        self.asked: list[tuple[str, int | None]] = []

    def __enter__(self) -> ScriptedClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def generate(self, request: GenerationRequest) -> Iterator[Reply]:
        self.asked.append((request.text_input, request.num_draft_tokens))
        statistics: dict[str, Any] = {"mean_acceptance_length": 1.0 if request.num_draft_tokens == 0 else 2.5}
        last = 9 if "JSON" in request.text_input and request.num_draft_tokens is None else 8
        yield Reply("a", (1, 2, 3), None, None, None, 0.1)
        yield Reply("b", (4, 5, 6, 7, last), None, statistics, "length", 0.2)


def test_a_measurement_asks_both_ways_twice() -> None:
    client = ScriptedClient()
    found = measure(client.generate, "chat", "hello")
    assert client.asked == [("hello", 0), ("hello", None)] * 2
    assert found.equal and found.mean_acceptance_length == 2.5 and found.plain_tokens_per_s > 0
    assert found.speedup == pytest.approx(found.speculative_tokens_per_s / found.plain_tokens_per_s)


def test_the_benchmark_says_where_texts_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "SpecDecodeClient", ScriptedClient)
    report = Report("a check", {})
    lines = benchmark("address", report).splitlines()
    assert [line.split(":")[0] for line in lines] == list(KINDS)
    different = {line.split(":")[0] for line in lines if line.endswith("differ")}
    assert different and {entry["kind"] for entry in report.data["benchmark"] if not entry["equal"]} == different
