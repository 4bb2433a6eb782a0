"""The figures of a sweep for people, spreadsheets and programs: table, CSV, JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.client.terminal import print_table
from pipeline.load.figures import PLAIN, SPECULATIVE, LoadFigures
from pipeline.load.level import Level

COLUMNS = ("load", "first ms", "per token", "tokens/s", "ratio", "requests/s", "kept", "length")
_NUMBERS = (
    *("requests", "tokens", "first_token_ms", "first_token_p95_ms", "per_token_ms", "per_token_p95_ms"),
    *("latency_ms", "tokens_per_s", "requests_per_s", "acceptance", "acceptance_length"),
)


def pairs(figures: Sequence[LoadFigures]) -> Iterator[tuple[Level, LoadFigures, LoadFigures]]:
    """Level, plain and speculative figures, in the order of the levels."""
    by_level: dict[Level, dict[str, LoadFigures]] = {}
    for found in figures:
        by_level.setdefault(found.level, {})[found.mode] = found
    for level, modes in by_level.items():
        yield level, modes[PLAIN], modes[SPECULATIVE]


def print_figures(console: Console, tool: str, figures: Sequence[LoadFigures], max_tokens: int) -> None:
    """One row per level, plain | speculative."""
    rows = [
        (
            level.label,
            f"{plain.first_token_ms:.0f}|{fast.first_token_ms:.0f}",
            f"{plain.per_token_ms:.1f}|{fast.per_token_ms:.1f}",
            f"{plain.tokens_per_s:.1f}|{fast.tokens_per_s:.1f}",
            f"{fast.tokens_per_s / plain.tokens_per_s:.2f}x",
            f"{plain.requests_per_s:.2f}|{fast.requests_per_s:.2f}",
            "-" if fast.acceptance is None else f"{fast.acceptance:.2f}",
            "-" if fast.acceptance_length is None else f"{fast.acceptance_length:.2f}",
        )
        for level, plain, fast in pairs(figures)
    ]
    title = f"{tool}, plain|speculative: medians of {figures[0].requests} requests of up to {max_tokens} tokens"
    print_table(console, title, COLUMNS, rows)


def write_csv(path: Path, figures: Sequence[LoadFigures]) -> None:
    """One line per run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["mode", "arrivals", "value", *_NUMBERS])
        for found in figures:
            numbers = [getattr(found, name) for name in _NUMBERS]
            texts = ["" if n is None else f"{n:.3f}" if isinstance(n, float) else n for n in numbers]
            writer.writerow([found.mode, found.level.kind, f"{found.level.value:g}", *texts])


def write_json(path: Path, conditions: Mapping[str, Any], figures: Sequence[LoadFigures]) -> None:
    """Conditions of the sweep and all its runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {**conditions, "runs": [asdict(found) for found in figures]}
    path.write_text(json.dumps(whole, indent=2) + "\n")
