"""Dashboard, alerts and runbook speak of metrics, labels and headings that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.metrics.catalogue import METRICS, Metric
from pipeline.spec import ROOT

DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/speculation/speculation.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
RUNBOOK = (ROOT / "docs/operations.md").read_text()
SERIES: dict[str, Metric] = {series: metric for metric in METRICS for series in metric.series}
EXPRESSIONS = [
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]),
    *(rule["expr"] for rule in RULES),
]
SCRAPED = {"job", "instance"}  # labels that Prometheus adds


def names(text: str) -> list[str]:
    return re.findall(r"spec_decode_[a-z_]+", text)


def labels_of(series: str) -> set[str]:
    metric = SERIES[series]
    return {*metric.labels, *(("le",) if series.endswith("_bucket") else ()), *SCRAPED}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_use_what_is_exported(expression: str) -> None:
    used = names(expression)
    assert used and set(used) <= set(SERIES)
    known = set().union(*(labels_of(series) for series in used))
    for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        assert {label.strip() for label in grouping.split(",")} <= known
    for series, selector in re.findall(r"(spec_decode_[a-z_]+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)=", selector)) <= labels_of(series)
    for function, series in re.findall(
        r"\b(rate|increase|min_over_time|avg_over_time)\((spec_decode_[a-z_]+)", expression
    ):
        assert (SERIES[series].kind == "gauge") == function.endswith("_over_time"), f"{function}({series})"
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_shows_every_metric() -> None:
    shown = {
        SERIES[name] for panel in DASHBOARD["panels"] for target in panel["targets"] for name in names(target["expr"])
    }
    assert {metric.name for metric in METRICS} - {metric.name for metric in shown} == set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert label in re.findall(r"by \(([^)]*)\)", target["expr"])[0].split(", ")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_lead_to_the_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "critical") and re.fullmatch(r"\d+m", rule["for"])
    path, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert path == "docs/operations.md" and anchor in anchors()
    expression = " ".join(rule["expr"].split())
    for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
        assert label in SCRAPED or all(
            label in SERIES[name].labels and (" by " not in expression or label in expression)
            for name in names(expression)
        )


def test_the_runbook_knows_every_metric() -> None:
    rows = dict(re.findall(r"^\| `(spec_decode_\w+)` \| (\w+) \|", RUNBOOK, re.MULTILINE))
    assert rows == {metric.name: metric.kind for metric in METRICS}
    for metric in METRICS:
        row = next(line for line in RUNBOOK.splitlines() if line.startswith(f"| `{metric.name}` |"))
        assert re.findall(r"`(\w+)`", row.split("|")[3]) == list(metric.labels)
        assert metric.help.rstrip(".") in row
    assert {name for name in names(RUNBOOK) if not name.endswith(("stats", "_num_"))} <= set(SERIES) | set(rows)


def test_links_inside_the_runbook_lead_somewhere() -> None:
    assert set(re.findall(r"\]\(#([^)]+)\)", RUNBOOK)) <= anchors()
    for path in re.findall(r"`((?:deploy|docs)/[\w./-]+)`", RUNBOOK):
        assert Path(ROOT / path).exists(), path


def anchors() -> set[str]:
    headings = re.findall(r"^#+ (.+)$", RUNBOOK, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
