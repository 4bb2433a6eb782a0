"""perf_analyzer, of the server's own release, on the streaming model over gRPC."""

from __future__ import annotations

import json
import re
from typing import Any

from pipeline.errors import ServerError
from pipeline.load.figures import PLAIN, LoadFigures
from pipeline.load.profile import measure, read_profile
from pipeline.load.tool import LoadRun, LoadTool
from pipeline.serving.contract import CHAT_PARAMETER, SPEC_DECODE_MODEL
from pipeline.serving.triton_install import find_perf_analyzer

_ATTEMPTS = 6
_NEVER_CALLED = "failed to find the requested model version"
_CALLS = re.compile(r"^\s*(\S+), version: \S*\n\s*Inference count: (\d+)", re.MULTILINE)


class PerfAnalyzer(LoadTool):
    """A run per level and mode: perf_analyzer counts requests only where it runs one level."""

    name = "perf_analyzer"

    def measure(self, run: LoadRun) -> LoadFigures:
        program = find_perf_analyzer()
        data, export = run.folder / "prompts.json", run.folder / "profile.json"
        command = [
            str(program.path),
            "-m",
            SPEC_DECODE_MODEL,
            "-u",
            run.address,
            "-i",
            "grpc",
            "--streaming",
            "--async",
        ]
        arrival = "--concurrency-range" if run.level.kind == "concurrency" else "--request-rate-range"
        # Without warm-up requests: 2.51 never ends where they and a rate are asked for together.
        command += [arrival, f"{run.level.value:g}", *shared_arguments(run)]
        command += ["--input-data", str(data), "--request-count", str(len(run.texts))]
        command += ["-f", str(run.folder / "table.csv"), "--verbose-csv", "--profile-export-file", str(export)]
        printed = self._run_until_exported(run, command, program.environment())
        calls = {name: float(count) for name, count in _CALLS.findall(printed) if name in run.composing}
        return measure(run.mode, run.level, read_profile(export), calls)

    def _run_until_exported(self, run: LoadRun, command: list[str], env: dict[str, str]) -> str:
        """A run fails on a composing model that it never called, as a draft that the controller had no use for, and is
        repeated without it; one that exported nothing is repeated as it was."""
        names = list(run.composing)
        attempt = 0
        while True:
            attempt += 1
            # What was sent once is in the prefix cache.
            texts = run.texts if attempt == 1 else [f"Attempt {attempt}. {text}" for text in run.texts]
            data = {"data": [_inputs(run, text) for text in texts]}
            (run.folder / "prompts.json").write_text(json.dumps(data))
            composing = ["--bls-composing-models", ",".join(names)] if names else []
            export = run.folder / "profile.json"
            export.unlink(missing_ok=True)  # it refuses to overwrite it
            try:
                printed = self.start([*command, *composing], env, run.folder)
            except ServerError as error:
                if not names or _NEVER_CALLED not in str(error):
                    raise
                names.pop()
                continue
            # Seen now and then with a status of 0: it exports memory that no response has set, and an empty file where
            # that is no number.
            if attempt >= _ATTEMPTS or (export.is_file() and export.stat().st_size):
                return printed


def shared_arguments(run: LoadRun) -> list[str]:
    """What genai-perf, too, has to pass on to perf_analyzer."""
    arguments = ["--request-parameter", f"{CHAT_PARAMETER}:true:bool"] if run.chat else []
    return arguments + ([] if run.level.kind == "concurrency" else ["--request-distribution", "poisson"])


def _inputs(run: LoadRun, text: str) -> dict[str, list[Any]]:
    inputs: dict[str, list[Any]] = {
        "text_input": [text],
        "max_tokens": [run.max_tokens],
        "temperature": [run.temperature],
        "stream": [True],
        "exclude_input_in_output": [True],
    }
    return {**inputs, "num_draft_tokens": [0]} if run.mode == PLAIN else inputs
