"""What `specdec bench` found, as parts of its JSON and as tables."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from pipeline.bench.acceptance import Acceptance
from pipeline.bench.load_point import round_split
from pipeline.client.bench_served import ServedResult
from pipeline.client.prompts import REPETITIVE
from pipeline.client.ratios import geomean
from pipeline.client.terminal import print_table
from pipeline.spec import DeploymentSpec


def conditions(spec: DeploymentSpec, max_tokens: int | None, quick: bool) -> dict[str, Any]:
    """What the figures hold for; `max_tokens`: None where no model decodes."""
    machine = {
        "deployment": spec.name,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "load average before": round(os.getloadavg()[0], 2),
    }
    if max_tokens is None:
        return machine
    return {
        **machine,
        "form": "short" if quick else "full",
        "dtype": spec.dtype,
        "max_tokens": max_tokens,
        "baseline": "one direct call of the target model with all of max_tokens, prompt cached for both",
    }


def served_report(results: Sequence[ServedResult]) -> dict[str, Any]:
    """The parts `served`, `round_split`, `acceptance` and `divergences` of the report."""
    kinds = list(dict.fromkeys(result.prompt.kind for result in results))
    by_kind = {kind: [r for r in results if r.prompt.kind == kind] for kind in kinds}
    groups = {kind: _group(members) for kind, members in by_kind.items()}
    repetitive = [r for r in results if r.prompt.kind in REPETITIVE]
    mixed = [r for r in results if r.prompt.kind not in REPETITIVE]
    for name, members in (("all repetitive", repetitive), ("all mixed", mixed), ("all", list(results))):
        if members:
            groups[name] = _group(members)
    return {
        "served": groups,
        "round_split": round_split([result.statistics for result in results]),
        "acceptance": {
            "0, one request": {
                kind: asdict(Acceptance.of([result.statistics for result in members]))
                for kind, members in by_kind.items()
            }
        },
        "divergences": [
            {"kind": r.prompt.kind, "prompt": r.prompt.text[:60], **asdict(d)} for r in results for d in r.divergences
        ],
    }


def print_served(
    console: Console, report: Mapping[str, Any], results: Sequence[ServedResult], fixed_k: Sequence[int]
) -> None:
    """One row per kind of text, the medians, and whether texts are plain decoding's."""
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
    figures = [(f"round time: {part}", f"{share:.1%}") for part, share in split.items()]
    figures.append(("served over in process, tokens/s", f"{report['served_over_in_process']['median']:.2f}x"))
    print_table(console, "medians", ("figure", "value"), figures)
    for found in report["divergences"]:
        console.print(
            f"K = {found['k']} differs at token {found['position']} ({found['kind']}): log-probability margin of the "
            f"target's first over second choice {found['margin']:.5f}",
            highlight=False,
        )
    if not report["divergences"]:
        compared = ", ".join(["adaptive", *map(str, fixed_k)])
        console.print(f"greedy texts equal plain decoding's on all {len(results)} prompts, K: {compared}")


def print_others(console: Console, others: Mapping[str, Any]) -> None:
    """Ours over theirs, and what they reached."""
    rows = [
        (f"{r['ours']} over {r['theirs']}", f"{r['median']:.2f}x", f"{r['low']:.2f}-{r['high']:.2f}", len(r["ratios"]))
        for r in others["ratios"]
    ]
    columns = ("tokens per second, in process", "median", "95 %", "n")
    title = f"same weights, greedy, {others['max_tokens']} tokens, prompt included"
    print_table(console, title, columns, [(*row[:3], str(row[3])) for row in rows])
    speeds = [
        (name, f"{sorted(values)[len(values) // 2]:.1f}", f"{min(values):.1f}-{max(values):.1f}")
        for name, values in others["speeds"].items()
    ]
    print_table(console, "tokens per second by prompt", ("decoder", "median", "range"), speeds)


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
