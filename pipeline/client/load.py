"""`specdec load`: a short perf_analyzer run against the streaming model, with speculation and without."""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from pipeline.client.prompts import Prompt, load_prompts
from pipeline.client.terminal import print_table
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.errors import ServerError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.serving.contract import SPEC_DECODE_MODEL, TARGET_MODEL
from pipeline.serving.triton_install import find_perf_analyzer
from pipeline.spec import ROOT, DeploymentSpec

COLUMNS = ("mode", "requests/s", "responses/s", "p50 ms", "p95 ms", "first response p50 ms")


@dataclass(frozen=True)
class LoadResult:
    """One perf_analyzer run."""

    mode: str
    requests_per_s: float
    responses_per_s: float
    p50_ms: float
    p95_ms: float
    first_response_ms: float

    def row(self) -> tuple[str, ...]:
        numbers = (self.requests_per_s, self.responses_per_s, self.p50_ms, self.p95_ms, self.first_response_ms)
        return (self.mode, *(f"{number:.1f}" for number in numbers))


def run_load(
    spec: DeploymentSpec, address: str, concurrency: int, requests: int, max_tokens: int, console: Console
) -> list[LoadResult]:
    """Measure plain and adaptive decoding under the same load.

    Args:
        address: host:port of gRPC.
        concurrency: requests in flight.
        requests: counted per mode, after a warm-up.

    Raises:
        ServerError: perf_analyzer failed; its words are in the message.
    """
    prompts = load_prompts()[:requests]
    with (
        console.status("bringing the prompts into the caches of both modes"),
        SpecDecodeClient(address) as client,
    ):
        for prompt in prompts:
            list(client.generate(GenerationRequest(prompt.text, 1, stream=True)))
    results = []
    for mode, k in (("plain (K = 0)", 0), ("adaptive K", None)):
        with console.status(f"perf_analyzer: {mode}, concurrency {concurrency}, {requests} requests"):
            results.append(_run(spec, address, concurrency, requests, max_tokens, mode, k, prompts))
    title = f"perf_analyzer, concurrency {concurrency}, {requests} requests of {max_tokens} tokens"
    print_table(console, title, COLUMNS, [result.row() for result in results])
    return results


def _run(
    spec: DeploymentSpec,
    address: str,
    concurrency: int,
    requests: int,
    max_tokens: int,
    mode: str,
    k: int | None,
    prompts: Sequence[Prompt],
) -> LoadResult:
    folder = ROOT / "runs" / spec.name / "load"
    folder.mkdir(parents=True, exist_ok=True)
    data, table, profile = folder / "prompts.json", folder / "perf.csv", folder / "profile.json"
    entries = []
    for prompt in prompts:
        entry: dict[str, list[object]] = {
            "text_input": [prompt.text],
            "max_tokens": [max_tokens],
            "stream": [True],
        }
        if k is not None:
            entry["num_draft_tokens"] = [k]
        entries.append(entry)
    data.write_text(json.dumps({"data": entries}))
    profile.unlink(missing_ok=True)  # perf_analyzer refuses to overwrite it
    program = find_perf_analyzer()
    command = [str(program.path), "-m", SPEC_DECODE_MODEL, "-u", address, "-i", "grpc", "--streaming", "--async"]
    command += ["--concurrency-range", str(concurrency), "--request-count", str(requests)]
    command += ["--warmup-request-count", str(concurrency), "--input-data", str(data), "--percentile", "95"]
    command += ["-f", str(table), "--verbose-csv", "--profile-export-file", str(profile)]
    # Not the draft: perf_analyzer fails on a composing model that a run never called.
    command += ["--bls-composing-models", TARGET_MODEL]
    done = subprocess.run(command, env=program.environment(), capture_output=True, text=True, timeout=600)
    if done.returncode != 0 or not table.is_file():
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise ServerError(f"perf_analyzer failed: {words[-1] if words else done.returncode}")
    with table.open() as stream:
        row = next(csv.DictReader(stream))
    exported = json.loads(profile.read_text())["experiments"][0]["requests"]
    first = [(r["response_timestamps"][0] - r["timestamp"]) / 1e6 for r in exported if r["response_timestamps"]]
    return LoadResult(
        mode=mode,
        requests_per_s=float(row["Inferences/Second"]),
        responses_per_s=float(row["Response Throughput"]),
        p50_ms=float(row["p50 latency"]) / 1e3,
        p95_ms=float(row["p95 latency"]) / 1e3,
        first_response_ms=statistics.median(first),
    )
