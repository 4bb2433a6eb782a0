"""`specdec bench`: the figures of the README, as ratios within one run."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.client.bench_local import WARM_UP, plain_over_transformers, served_over_local
from pipeline.client.bench_served import FIXED_K, ServedBench, ServedResult
from pipeline.client.prompts import BUILT_IN, REPETITIVE, Prompt, load_prompts
from pipeline.client.ratios import geomean
from pipeline.client.serve import running_server
from pipeline.client.terminal import print_table
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.engine.fit import read_engine_manifest
from pipeline.errors import SpecError
from pipeline.serving.ports import FREE_PORTS
from pipeline.spec import ROOT, DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

LOCAL_PROMPTS = 6
QUICK_PER_KIND = 2
REFERENCE_TOKENS = 48


def run_bench(
    spec: DeploymentSpec,
    console: Console,
    prompts_file: Path | None,
    max_tokens: int,
    json_file: Path | None,
    quick: bool,
) -> int:
    """Measure, print tables, write JSON. Returns the exit status.

    Raises:
        SpecDecodeError: an engine or server that is missing.
    """
    prompts = load_prompts(prompts_file or BUILT_IN)
    if quick:
        prompts = _per_kind(prompts, QUICK_PER_KIND)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    target_dir = spec.engine_dir("target")
    manifest = read_engine_manifest(spec, "target")
    mixed = _per_kind(prompts, 1)[:LOCAL_PROMPTS]
    with running_server(spec, console, FREE_PORTS) as server, SpecDecodeClient(server.grpc_address) as client:
        bench = ServedBench(client, Tokenizer.load(target_dir), manifest.end_id, max_tokens)
        results = []
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("served", total=len(prompts))
            bench.measure(WARM_UP, 0, ())
            for order, prompt in enumerate(prompts):
                progress.update(task, description=f"served: {prompt.kind}")
                results.append(bench.measure(prompt, order, () if quick else FIXED_K))
                progress.advance(task)
            progress.update(task, description="served")
            local = progress.add_task("in process", total=None)
            served_ratios = served_over_local(
                spec, bench, mixed, max_tokens, lambda what: progress.update(local, description=what)
            )
            progress.update(local, description="in process", total=1, completed=1)
    reference: dict[str, list[float]] = {}
    if not quick:
        with console.status("transformers") as status:
            reference = plain_over_transformers(spec, _model_folder(spec), mixed, REFERENCE_TOKENS, status.update)
    report = _report(spec, results, served_ratios, reference, max_tokens)
    _print(console, report, results)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report, indent=2) + "\n")
        console.print(f"written to {json_file}", highlight=False)
    return 0


def _per_kind(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    kinds = dict.fromkeys(prompt.kind for prompt in prompts)
    return [prompt for kind in kinds for prompt in [p for p in prompts if p.kind == kind][:count]]


def _model_folder(spec: DeploymentSpec) -> Path:
    name = spec.target.model
    folder = ROOT / ".cache" / "models" / name.removeprefix("demo:") if name.startswith("demo:") else ROOT / name
    if not folder.is_dir():
        raise SpecError(f"model folder {folder} is missing; run `make engines`")
    return folder


def _group(results: Sequence[ServedResult]) -> dict[str, Any]:
    drafted = sum(r.statistics["num_draft_tokens"] for r in results)
    accepted = sum(r.statistics["num_accepted_draft_tokens"] for r in results)
    rounds = sum(r.statistics["rounds"] for r in results)
    tokens = sum(r.tokens for r in results)
    speedups = sorted(r.speedup for r in results)
    return {
        "prompts": len(results),
        "plain_tokens_per_s": sum(r.plain_tokens for r in results) / sum(r.plain_s for r in results),
        "speculative_tokens_per_s": tokens / sum(r.speculative_s for r in results),
        "speedup_geomean": geomean(speedups),
        "speedup_lowest": speedups[0],
        "speedup_highest": speedups[-1],
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "tokens_per_round": tokens / rounds,
        "texts_differing": sum(bool(r.divergences) for r in results),
    }


def _report(
    spec: DeploymentSpec,
    results: Sequence[ServedResult],
    served_ratios: Sequence[float],
    reference: dict[str, list[float]],
    max_tokens: int,
) -> dict[str, Any]:
    kinds = list(dict.fromkeys(result.prompt.kind for result in results))
    groups = {kind: _group([r for r in results if r.prompt.kind == kind]) for kind in kinds}
    repetitive = [r for r in results if r.prompt.kind in REPETITIVE]
    mixed = [r for r in results if r.prompt.kind not in REPETITIVE]
    for name, members in (("all repetitive", repetitive), ("all mixed", mixed), ("all", list(results))):
        if members:
            groups[name] = _group(members)
    split = {part: sum(r.statistics[f"{part}_s"] for r in results) for part in ("draft", "verify", "overhead")}
    whole = sum(split.values())
    return {
        "conditions": {
            "deployment": spec.name,
            "dtype": spec.dtype,
            "greedy": True,
            "concurrency": 1,
            "max_tokens": max_tokens,
            "cpus": os.cpu_count(),
            "machine": platform.machine(),
            "baseline": "one direct call of the target model with all of max_tokens, prompt cached for both",
        },
        "served": groups,
        "round_split": {part: seconds / whole for part, seconds in split.items()},
        "served_over_in_process": {"median": statistics.median(served_ratios), "ratios": list(served_ratios)},
        "plain_over_transformers": {
            name: {"median": statistics.median(values), "ratios": values} for name, values in reference.items()
        },
        "divergences": [
            {"kind": r.prompt.kind, "prompt": r.prompt.text[:60], **asdict(d)} for r in results for d in r.divergences
        ],
    }


def _print(console: Console, report: dict[str, Any], results: Sequence[ServedResult]) -> None:
    rows = [
        (
            name,
            str(group["prompts"]),
            f"{group['plain_tokens_per_s']:.1f}",
            f"{group['speculative_tokens_per_s']:.1f}",
            f"{group['speedup_geomean']:.2f}x",
            f"{group['speedup_lowest']:.2f}-{group['speedup_highest']:.2f}",
            f"{group['draft_acceptance_rate']:.2f}",
            f"{group['tokens_per_round']:.2f}",
            str(group["texts_differing"]),
        )
        for name, group in report["served"].items()
    ]
    columns = ("kind", "n", "plain t/s", "spec t/s", "speedup", "range", "accept", "t/round", "differ")
    print_table(console, "served, greedy, concurrency 1: speculative (adaptive K) over plain", columns, rows)
    split = report["round_split"]
    others = [
        ("round time: draft", f"{split['draft']:.1%}"),
        ("round time: verify", f"{split['verify']:.1%}"),
        ("round time: everything else", f"{split['overhead']:.1%}"),
        ("served over in process, tokens/s", f"{report['served_over_in_process']['median']:.2f}x"),
    ]
    for name, values in report["plain_over_transformers"].items():
        others.append((f"own plain over transformers {name}, tokens/s", f"{values['median']:.2f}x"))
    print_table(console, "medians", ("figure", "value"), others)
    for found in report["divergences"]:
        console.print(
            f"K = {found['k']} differs at token {found['position']} ({found['kind']}): log-probability margin of the "
            f"target's first over second choice {found['margin']:.5f}",
            highlight=False,
        )
    if not report["divergences"]:
        compared = sorted({"adaptive"} | ({str(k) for k in FIXED_K} if report["plain_over_transformers"] else set()))
        console.print(f"greedy texts equal plain decoding's on all {len(results)} prompts, K: {', '.join(compared)}")
