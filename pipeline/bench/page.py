"""The report of `specdec bench` as one HTML file that needs nothing else: tables and plots, made from its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from pipeline.bench.plot import Point, Series, draw
from pipeline.errors import SpecError

SECTIONS = ("served", "load", "acceptance", "timelines", "others", "orchestrator")
STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #ffffff; --faint: #d8d8d8; --soft: #666666; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181c; --faint: #3a3d44; --soft: #a0a0a0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1180px; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.note { color: var(--soft); max-width: 60rem; }
div.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 0.8rem 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--faint); padding: 0.25rem 0.8rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
div.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 1.2rem; }
svg { width: 100%; height: auto; overflow: visible; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg text.title { font-size: 14px; font-weight: 600; }
svg text.middle { text-anchor: middle; } svg text.end { text-anchor: end; }
svg .grid { stroke: var(--faint); } svg .mark { stroke: var(--soft); stroke-dasharray: 5 4; }
svg .line { fill: none; stroke-width: 2; } svg .spread { stroke-width: 1.5; }
""" + "".join(
    f"svg .s{number} {{ stroke: {colour}; }} svg .fill.s{number} {{ fill: {colour}; stroke: none; }}\n"
    for number, colour in enumerate(
        ("#4a86c5", "#e8743b", "#2fa36b", "#b65fc4", "#c9a227", "#d9506c", "#1f9fae", "#8a8f98")
    )
)


def read_report(path: Path) -> dict[str, Any]:
    """What `specdec bench --json` wrote.

    Raises:
        SpecError: the file cannot be read, or is no such report.
    """
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise SpecError(f"report {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SpecError(f"report {path} is not JSON: {error}") from error
    if not isinstance(data, dict) or not any(data.get(section) for section in SECTIONS):
        raise SpecError(f"report {path} has none of the parts that a bench writes: {', '.join(SECTIONS)}")
    return data


def save_page(report: Mapping[str, Any], path: Path) -> None:
    """Write the page of a report.

    Raises:
        SpecError: a part of the report is not what a bench writes, or the page cannot be written.
    """
    try:
        text = page(report)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise SpecError(f"the report is damaged, or of another version: {type(error).__name__} {error}") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"page {path} cannot be written: {error.strerror}") from error


def page(report: Mapping[str, Any]) -> str:
    """The HTML text; parts that were not measured are left out."""
    conditions = report.get("conditions", {})
    title = f"specdec bench: {conditions.get('deployment', 'a deployment')}"
    parts = [f"<h1>{escape(title)}</h1>", _table(("condition", ""), conditions.items())]
    makers = {"served": _served, "load": _load, "acceptance": _acceptance, "timelines": _timelines}
    for section, make in {**makers, "others": _others, "orchestrator": _orchestrator}.items():
        if report.get(section):
            parts += make(report)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(parts)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n'


def _served(report: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            kind,
            group["prompts"],
            f"{group['plain_tokens_per_s']:.1f}",
            f"{group['speculative_tokens_per_s']:.1f}",
            f"{group['speedup_geomean']:.2f}x",
            f"{group['speedup_lowest']:.2f}-{group['speedup_highest']:.2f}",
            f"{group['draft_acceptance_rate']:.2f}",
            f"{group['tokens_per_round']:.2f}",
            group["texts_differing"],
        )
        for kind, group in report["served"].items()
    ]
    columns = ("kind", "prompts", "plain t/s", "spec. t/s", "speedup", "range", "accepted", "tokens/round", "differing")
    split = report.get("round_split", {})
    shares = ", ".join(f"{part} {share:.1%}" for part, share in split.items())
    ratio = report.get("served_over_in_process")
    notes = [f"Where the rounds' time went: {shares}."] if split else []
    notes += [f"Served over in process, tokens/s: {ratio['median']:.2f}x."] if ratio else []
    heading = "<h2>One request at a time, greedy, by kind of text</h2>"
    return [heading, _table(columns, rows), *(f'<p class="note">{escape(note)}</p>' for note in notes)]


def _load(report: Mapping[str, Any]) -> list[str]:
    points = report["load"]["points"]
    places = sorted({point["concurrency"] for point in points})
    ticks = [str(place) for place in places]

    def series(value: str, low: str = "", high: str = "", scale: float = 1.0, name: str = "") -> list[Series]:
        return [
            Series(
                f"{name}T {temperature:g}",
                tuple(
                    Point(
                        places.index(p["concurrency"]),
                        scale * p[value],
                        scale * p[low] if low else None,
                        scale * p[high] if high else None,
                    )
                    for p in points
                    if p["temperature"] == temperature
                ),
            )
            for temperature in dict.fromkeys(point["temperature"] for point in points)
        ]

    x = "requests at once"
    plots = [
        draw("speedup over plain decoding, 95 % interval", x, series("speedup", "low", "high"), ticks, 1.0),
        draw(
            "time to first token over plain's, 95 % interval",
            x,
            series("first_token", "first_token_low", "first_token_high"),
            ticks,
            1.0,
        ),
        draw(
            "tokens per second",
            x,
            series("plain_tokens_per_s", name="plain ") + series("speculative_tokens_per_s", name="spec. "),
            ticks,
        ),
        draw(
            "milliseconds to the first token",
            x,
            series("plain_first_token_s", scale=1e3, name="plain ") + series("first_token_s", scale=1e3, name="spec. "),
            ticks,
        ),
    ]
    rows = [
        (
            f"T {p['temperature']:g}, {p['concurrency']}",
            p["pairs"],
            f"{p['plain_tokens_per_s']:.0f}",
            f"{p['speculative_tokens_per_s']:.0f}",
            f"{p['speedup']:.2f}x",
            f"{p['low']:.2f}-{p['high']:.2f}",
            _number(p["acceptance"], ".2f"),
            f"{p['first_token']:.2f}x",
            _number(p["plain_token_s"], ".1f", 1e3),
            _number(p["token_s"], ".1f", 1e3),
            _number(p["over_one"], ".2f"),
            " / ".join(f"{share:.0%}" for share in p["round_split"].values()),
        )
        for p in points
    ]
    columns = ("requests", "pairs", "plain t/s", "spec. t/s", "speedup", "95 %", "accepted", "first token")
    more = ("plain ms/token", "spec. ms/token", "over one", "draft / verify / else")
    heading = f"<h2>Many requests at once, {report['load']['max_tokens']} tokens each</h2>"
    return [heading, _plots(plots), _table((*columns, *more), rows)]


def _acceptance(report: Mapping[str, Any]) -> list[str]:
    parts, plots = ["<h2>Drafts accepted</h2>"], []
    rows = []
    for temperature, kinds in report["acceptance"].items():
        lines = []
        for kind, found in kinds.items():
            share = found["accepted"] / found["drafted"] if found["drafted"] else None
            rows.append((f"{kind}, T {temperature}", found["drafted"], found["accepted"], _number(share, ".2f")))
            pairs = zip(found["drafted_by_position"], found["accepted_by_position"], strict=True)
            points = tuple(Point(place, kept / tried) for place, (tried, kept) in enumerate(pairs) if tried)
            if points:
                lines.append(Series(kind, points))
        if lines:
            ticks = [str(place + 1) for place in range(max(len(line.points) for line in lines))]
            plots.append(draw(f"drafts kept, T {temperature}", "place in the block", lines, ticks))
    note = "Share of the drafts verified at a place that were kept; those behind a refused one count as refused."
    return [
        *parts,
        _plots(plots),
        f'<p class="note">{note}</p>',
        _table(("kind", "drafted", "accepted", "share"), rows),
    ]


def _timelines(report: Mapping[str, Any]) -> list[str]:
    plots = []
    for request in report["timelines"]:
        rounds = request["rounds"]
        lines = [
            Series(name, tuple(Point(one["seconds"], one[value]) for one in rounds), steps=True)
            for name, value in (("K", "drafted"), ("kept", "accepted"))
        ]
        if rounds:
            plots.append(draw(f"K over time: {request['kind']}", "seconds since the request", lines))
    note = "One request each, greedy, alone; K is what the target verified, 0 is plain decoding."
    return ["<h2>K over time</h2>", _plots(plots), f'<p class="note">{note}</p>']


def _others(report: Mapping[str, Any]) -> list[str]:
    found = report["others"]
    ratios = [
        (r["ours"], r["theirs"], f"{r['median']:.2f}x", f"{r['low']:.2f}-{r['high']:.2f}", len(r["ratios"]))
        for r in found["ratios"]
    ]
    speeds = [
        (name, f"{sorted(values)[len(values) // 2]:.1f}", f"{min(values):.1f}-{max(values):.1f}")
        for name, values in found["speeds"].items()
    ]
    return [
        f"<h2>What is used instead, in process, same weights, {found['max_tokens']} tokens</h2>",
        _table(("ours", "over", "median", "95 %", "prompts"), ratios),
        _table(("tokens per second", "median", "range"), speeds),
    ]


def _orchestrator(report: Mapping[str, Any]) -> list[str]:
    points = report["orchestrator"]["points"]
    places = sorted({p["in_flight"] for p in points})
    lines = [
        Series(
            f"{driver}, {controller}",
            tuple(
                Point(places.index(p["in_flight"]), p["rounds_per_cpu_s"])
                for p in points
                if (p["driver"], p["controller"]) == (driver, controller)
            ),
        )
        for driver, controller in dict.fromkeys((p["driver"], p["controller"]) for p in points)
    ]
    rows = [
        (
            f"{p['driver']}, {p['controller']}",
            p["in_flight"],
            p["rounds"],
            f"{p['rounds_per_cpu_s']:.0f}",
            f"{p['rounds_per_s']:.0f}",
            _number(p["bytes_per_request"], ".1f", 1e-3),
        )
        for p in points
    ]
    columns = ("driver", "in flight", "rounds", "rounds/s per core", "rounds/s", "KB per request")
    plot = draw("rounds per second of one core", "requests in flight", lines, [str(place) for place in places])
    return ["<h2>The orchestrator alone, models that cost nothing</h2>", _plots([plot]), _table(columns, rows)]


def _plots(plots: Sequence[str]) -> str:
    return '<div class="plots">' + "\n".join(f"<div>{plot}</div>" for plot in plots) + "</div>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(scale * value, form)
