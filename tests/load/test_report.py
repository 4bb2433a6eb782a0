"""A sweep as table, CSV, JSON and picture."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from rich.console import Console

from pipeline.load.figures import MODES, LoadFigures, Mode
from pipeline.load.level import Level
from pipeline.load.picture import draw
from pipeline.load.report import pairs, print_figures, write_csv, write_json

LEVELS = (Level("concurrency", 1), Level("concurrency", 4), Level("rate", 2))


def figures_of(mode: Mode, level: Level, speed: float) -> LoadFigures:
    drafted = (0.5, 2.5) if mode == "speculative" else (None, None)
    return LoadFigures(mode, level, 8, 80, 40.0, 60.0, 10.0, 12.0, 500.0, speed, speed / 10, *drafted)


FIGURES = [
    figures_of(mode, level, 100.0 * (n + 1) * (1.5 if mode == "speculative" else 1))
    for n, level in enumerate(LEVELS)
    for mode in (MODES if n % 2 == 0 else reversed(MODES))
]


def test_modes_are_side_by_side_whoever_went_first() -> None:
    assert [(level, plain.mode, fast.mode) for level, plain, fast in pairs(FIGURES)] == [
        (level, "plain", "speculative") for level in LEVELS
    ]


def test_table() -> None:
    console = Console(record=True, width=100)
    print_figures(console, "perf_analyzer", FIGURES, 10)
    text = console.export_text()
    assert "Poisson 2/s" in text and "200.0|300.0" in text and text.count("1.50x") == 3


def test_csv_and_json(tmp_path: Path) -> None:
    write_csv(tmp_path / "a" / "load.csv", FIGURES)
    with (tmp_path / "a" / "load.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 6 and rows[0]["acceptance"] == "" and rows[1]["acceptance"] == "0.500"
    assert [(row["mode"], row["arrivals"], row["value"]) for row in rows[2:4]] == [
        ("speculative", "concurrency", "4"),
        ("plain", "concurrency", "4"),
    ]
    write_json(tmp_path / "load.json", {"tool": "perf_analyzer"}, FIGURES)
    found = json.loads((tmp_path / "load.json").read_text())
    assert found["tool"] == "perf_analyzer" and found["runs"][5]["level"] == {"kind": "rate", "value": 2}


def test_picture_has_a_mark_per_run_and_panel() -> None:
    root = ElementTree.fromstring(draw("a <title>", FIGURES))
    circles = [element for element in root if element.tag.endswith("circle")]
    assert len(circles) == 3 * len(FIGURES)
    # Higher throughput is drawn higher: y grows downwards.
    heights = [float(circle.attrib["cy"]) for circle in circles[:3]]
    assert heights == sorted(heights, reverse=True) and len(set(heights)) == 3
