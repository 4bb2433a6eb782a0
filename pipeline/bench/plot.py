"""One plot as inline SVG: lines with intervals over named or numbered places. Colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 40, 66
COLOURS = 8  # classes s0 to s7 of the page's style
LETTER = 7.0  # about, of the legend


@dataclass(frozen=True)
class Point:
    """A value, and its interval where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """A line.

    Attributes:
        steps: the value holds until the next point, instead of moving to it.
    """

    name: str
    points: tuple[Point, ...]
    steps: bool = False


def draw(
    title: str, x_label: str, series: Sequence[Series], ticks: Sequence[str] | None = None, mark: float | None = None
) -> str:
    """The SVG text.

    Args:
        title: above the plot.
        x_label: under it.
        series: each of at least one point.
        ticks: names of the places x = 0, 1, ...; None numbers the axis.
        mark: a value with a line of its own across the plot, such as 1 for "as fast".
    """
    points = [point for one in series for point in one.points]
    right = len(ticks) - 1 if ticks else max(point.x for point in points)
    values = [value for p in points for value in (p.y, p.low, p.high) if value is not None and math.isfinite(value)]
    values += [0.0] if mark is None else [mark]
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or 0.5
    bottom, top = (0.0 if low == 0 else low - pad), high + pad

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x + 0.5) / (right + 1) if ticks else x / (right or 1)
        up = (y - bottom) / (top - bottom)
        return LEFT + (WIDTH - LEFT - RIGHT) * across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * up

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        _text(LEFT, 20, title, "title"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 34, x_label, "label middle"),
    ]
    for value in nice_values(bottom, top):
        _, y = at(0, value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{value:g}", "label end"))
    places = list(enumerate(ticks)) if ticks else [(v, f"{v:g}") for v in nice_values(0.0, right)]
    for place, name in places:
        x, _ = at(place, bottom)
        parts.append(_text(x, HEIGHT - BOTTOM + 16, name, "label middle"))
    if mark is not None:
        _, y = at(0, mark)
        parts.append(f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    width = 24 + LETTER * max(len(one.name) for one in series)
    for number, one in enumerate(series):
        colour = f"s{number % COLOURS}"
        # Intervals at one place would hide each other.
        shift = 6 * (number - (len(series) - 1) / 2) if ticks else 0.0
        parts += _line(one, colour, [(x + shift, y) for x, y in (at(p.x, p.y) for p in one.points)])
        for point in one.points:
            if point.low is not None and point.high is not None:
                x, upper = at(point.x, point.high)
                _, lower = at(point.x, point.low)
                where = f'x1="{x + shift:.1f}" x2="{x + shift:.1f}" y1="{lower:.1f}" y2="{upper:.1f}"'
                parts.append(f'<line class="spread {colour}" {where}/>')
        row, column = divmod(number, max(1, int((WIDTH - LEFT) / width)))
        x, y = LEFT + column * width, HEIGHT - 16 + 14 * row
        parts.append(f'<rect class="fill {colour}" x="{x:.1f}" y="{y - 9}" width="10" height="10"/>')
        parts.append(_text(x + 14, y, one.name, "label"))
    return "\n".join([*parts, "</svg>"])


def nice_values(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two limits, about so many."""
    raw = (high - low) / about
    if raw <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _line(series: Series, colour: str, places: Sequence[tuple[float, float]]) -> list[str]:
    corners = list(places)
    if series.steps:
        corners = [places[0]]
        for (_, before), (x, y) in pairwise(places):
            corners += [(x, before), (x, y)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    dots = [f'<circle class="fill {colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places]
    return [f'<polyline class="line {colour}" points="{path}"/>', *dots]


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
