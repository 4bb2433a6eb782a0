"""The page of a recorded bench: everything in it, nothing from elsewhere, and a clear word for what is no report."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.bench.page import SECTIONS, page, read_report, save_page
from pipeline.client.cli import app
from pipeline.errors import SpecError

RECORDED = Path(__file__).with_name("report.json")  # a short run of the demo, fewer kinds and rounds kept
VOID = {"meta", "br", "hr"}


class Checker(HTMLParser):
    """Collects what a page refers to, and that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.cells: list[str] = []
        self.titles: list[str] = []
        self._in: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.links += [str(value) for name, value in attributes if name in ("src", "href", "xlink:href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)
        title = tag == "text" and ("class", "title") in attributes
        self._in = "title" if title else tag

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"
        self._in = None

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert all(name not in ("src", "href") for name, _ in attributes)

    def handle_data(self, data: str) -> None:
        if self._in == "td":
            self.cells.append(data)
        elif self._in == "title":
            self.titles.append(data)


def check(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


@pytest.fixture
def report() -> dict[str, Any]:
    return read_report(RECORDED)


def test_everything_that_was_measured_is_shown(report: dict[str, Any]) -> None:
    text = page(report)
    found = check(text)
    assert set(SECTIONS) <= set(report), "the recorded report has every part"
    titles = " | ".join(found.titles)
    for words in ("speedup over plain decoding", "time to first token", "K over time", "drafts kept", "of one core"):
        assert words in titles
    for point in report["load"]["points"]:
        row = [f"T {point['temperature']:g}, {point['concurrency']}", f"{point['speedup']:.2f}x"]
        assert set(row) <= set(found.cells)
        assert f"{point['low']:.2f}-{point['high']:.2f}" in found.cells
    for ratio in report["others"]["ratios"]:
        assert {ratio["ours"], ratio["theirs"], f"{ratio['median']:.2f}x"} <= set(found.cells)
    for kind, group in report["served"].items():
        assert kind in found.cells and f"{group['speedup_geomean']:.2f}x" in found.cells
    assert f"{report['served_over_in_process']['median']:.2f}x" in text
    spreads = len(re.findall(r'class="spread', text))
    assert spreads == 2 * len(report["load"]["points"]), "speedup and first token have their intervals"


def test_nothing_comes_from_elsewhere(report: dict[str, Any]) -> None:
    text = page(report)
    assert check(text).links == []
    assert not re.search(r"@import|url\(|https?://|<script", text)
    assert "prefers-color-scheme: dark" in text and "color-scheme: light dark" in text


def test_colours_come_from_the_style_alone(report: dict[str, Any]) -> None:
    """A colour in a drawing would be the same on dark paper."""
    body = page(report).partition("</style>")[2]
    assert not re.search(r'#[0-9a-f]{3,6}\b|fill="|stroke="', body)


@pytest.mark.parametrize("section", SECTIONS)
def test_one_part_alone_makes_a_page(report: dict[str, Any], section: str) -> None:
    parts = {section: report[section], "conditions": report["conditions"]}
    found = check(page(parts))
    assert found.cells and len(re.findall("<h2>", page(parts))) == 1


def test_texts_are_shown_and_not_obeyed(report: dict[str, Any]) -> None:
    report["conditions"]["deployment"] = "<script>alert(1)</script>"
    report["served"]["<img src=x>"] = report["served"]["all"]
    text = page(report)
    assert check(text).links == [] and "<script" not in text
    assert "<img src=x>" in [unescape(cell) for cell in check(text).cells]


def test_the_command_makes_the_page_anew(tmp_path: Path) -> None:
    figures = tmp_path / "bench.json"
    figures.write_text(RECORDED.read_text())
    runner = CliRunner()
    assert runner.invoke(app, ["report", str(figures)]).exit_code == 0
    assert (tmp_path / "bench.html").read_text() == page(read_report(RECORDED))
    elsewhere = tmp_path / "pages" / "x.html"
    assert runner.invoke(app, ["report", str(figures), "--out", str(elsewhere)]).exit_code == 0
    assert elsewhere.read_text() == (tmp_path / "bench.html").read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[]", "has none of the parts"),
        ('{"served": {}}', "has none of the parts"),
        ('{"load": {"points": [{"concurrency": 1}]}}', "damaged, or of another version"),
        ('{"orchestrator": 3}', "damaged, or of another version"),
    ],
)
def test_what_is_no_report_is_one_line(tmp_path: Path, text: str | None, words: str) -> None:
    figures = tmp_path / "bench.json"
    if text is not None:
        figures.write_text(text)
    done = CliRunner().invoke(app, ["report", str(figures)])
    assert done.exit_code == 1 and words in done.stderr
    assert not (tmp_path / "bench.html").exists()


def test_a_page_that_cannot_be_written_is_said(report: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be written"):
        save_page(report, tmp_path)


def test_the_recorded_report_is_small() -> None:
    assert RECORDED.stat().st_size < 60_000 and json.loads(RECORDED.read_text())["conditions"]["deployment"] == "demo"
