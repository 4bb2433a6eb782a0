"""genai-perf in its TensorRT-LLM form, from an environment of its own; it calls perf_analyzer underneath."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.errors import ServerError
from pipeline.load.figures import PLAIN, LoadFigures
from pipeline.load.perf_analyzer import shared_arguments
from pipeline.load.profile import measure, read_profile
from pipeline.load.tool import LoadRun, LoadTool
from pipeline.serving.contract import SPEC_DECODE_MODEL
from pipeline.serving.triton_install import find_perf_analyzer
from pipeline.spec import ROOT

ENVIRONMENT = ROOT / ".venv-genai-perf"
EXPORT, SUMMARY = "profile_export.json", "profile_export_genai_perf.json"


class GenaiPerf(LoadTool):
    """Times and throughputs are genai-perf's own, with its own count of tokens; acceptance is in the answers.

    Args:
        tokenizer: a folder, or a name on the Hugging Face hub.
        program: None: in its environment, else on PATH.
    """

    name = "genai-perf"

    def __init__(self, tokenizer: str, program: Path | None = None, timeout_s: float = 1800.0) -> None:
        super().__init__(timeout_s)
        folder = Path(tokenizer)  # the tool runs in a folder of its own
        self._tokenizer = str(folder.resolve()) if folder.is_dir() else tokenizer
        self._program = program or _find()

    def measure(self, run: LoadRun) -> LoadFigures:
        prompts = run.folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in run.texts))
        analyzer = find_perf_analyzer()
        env = analyzer.environment()
        env["PATH"] = os.pathsep.join([str(analyzer.path.parent), env.get("PATH", "")])
        if Path(self._tokenizer).is_dir():
            env["HF_HUB_OFFLINE"] = "1"
        shutil.rmtree(run.folder / "artifacts", ignore_errors=True)  # an earlier run's summary is not this one's
        self.start(self._command(run, prompts), env, run.folder)
        summary = next(run.folder.rglob(SUMMARY), None)
        if summary is None:
            raise ServerError(f"{self.name} wrote no {SUMMARY}")
        return read_summary(run, summary)

    def _command(self, run: LoadRun, prompts: Path) -> list[str]:
        extra = {"max_tokens": run.max_tokens, "temperature": run.temperature}
        if run.mode == PLAIN:
            extra["num_draft_tokens"] = 0
        flag = "--concurrency" if run.level.kind == "concurrency" else "--request-rate"
        command = [str(self._program), "profile", "-m", SPEC_DECODE_MODEL, "-u", run.address]
        command += ["--backend", "tensorrtllm", "--endpoint-type", "kserve", "--streaming"]
        command += ["--tokenizer", self._tokenizer, "--input-file", str(prompts), flag, f"{run.level.value:g}"]
        command += ["--request-count", str(len(run.texts)), "--artifact-dir", str(run.folder / "artifacts")]
        for name, value in extra.items():
            command += ["--extra-inputs", f"{name}:{value}"]
        passed = shared_arguments(run)
        return [*command, "--", *passed] if passed else command


def read_summary(run: LoadRun, summary: Path) -> LoadFigures:
    """Figures of genai-perf's summary, with the acceptance that the export beside it holds.

    Raises:
        ServerError: either is not what it should be.
    """
    figures = measure(run.mode, run.level, read_profile(summary.with_name(EXPORT)))
    try:
        found: dict[str, Any] = json.loads(summary.read_text())
        first, token = found["time_to_first_token"], found["inter_token_latency"]
        return replace(
            figures,
            tokens=round(found["output_sequence_length"]["avg"] * found["request_count"]["avg"]),
            first_token_ms=float(first["p50"]),
            first_token_p95_ms=float(first["p95"]),
            per_token_ms=float(token["p50"]),
            per_token_p95_ms=float(token["p95"]),
            latency_ms=float(found["request_latency"]["p50"]),
            tokens_per_s=float(found["output_token_throughput"]["avg"]),
            requests_per_s=float(found["request_throughput"]["avg"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{summary} is no summary of genai-perf: {type(error).__name__} {error}") from error


def _find() -> Path:
    beside = ENVIRONMENT / "bin" / "genai-perf"
    found = str(beside) if beside.is_file() else shutil.which("genai-perf")
    if found is None:
        raise ServerError("genai-perf is missing; `make load TOOL=genai-perf` installs it into .venv-genai-perf")
    return Path(found)
