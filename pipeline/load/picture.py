"""A sweep as a picture: throughput, first token and time per token by load, plain and speculative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.drawing import LINES, dot, line, page, rect, text
from pipeline.load.figures import MODES, LoadFigures
from pipeline.load.report import pairs

WIDTH, HEIGHT, MARGIN = 1080, 360, 60
COLOURS = dict(zip(MODES, LINES, strict=False))
PANELS: tuple[tuple[str, Callable[[LoadFigures], float]], ...] = (
    ("tokens per second", lambda found: found.tokens_per_s),
    ("first token, ms (median)", lambda found: found.first_token_ms),
    ("per token, ms (median)", lambda found: found.per_token_ms),
)
_STEP = (WIDTH - MARGIN) / len(PANELS)
_PANEL = _STEP - MARGIN
_TOP, _BOTTOM = 75, HEIGHT - 60


def draw(title: str, figures: Sequence[LoadFigures]) -> str:
    """The SVG text. Lines join loads of one kind: concurrencies, or rates."""
    shapes = [text(MARGIN, 25, title, size=16)]
    for number, (name, value) in enumerate(PANELS):
        shapes += _panel(MARGIN + number * _STEP, name, value, figures)
    for number, mode in enumerate(MODES):
        shapes.append(rect(MARGIN + 110 * number, HEIGHT - 20, 10, 10, COLOURS[mode]))
        shapes.append(text(MARGIN + 110 * number + 14, HEIGHT - 11, mode))
    return page(WIDTH, HEIGHT, shapes)


def save(path: Path, title: str, figures: Sequence[LoadFigures]) -> None:
    """Write the picture.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(title, figures), encoding="utf-8")


def _panel(left: float, name: str, value: Callable[[LoadFigures], float], figures: Sequence[LoadFigures]) -> list[str]:
    levels = [level for level, _, _ in pairs(figures)]
    top = max(value(found) for found in figures) * 1.1 or 1.0

    def point(found: LoadFigures) -> tuple[float, float]:
        x = left + _PANEL * (levels.index(found.level) + 0.5) / len(levels)
        return x, _BOTTOM - (_BOTTOM - _TOP) * value(found) / top

    shapes = [text(left, 55, name), line([(left, _TOP), (left, _BOTTOM), (left + _PANEL, _BOTTOM)], "#999999")]
    for share in (0.5, 1.0):
        shapes.append(text(left - 40, _BOTTOM - (_BOTTOM - _TOP) * share + 4, f"{top * share:.0f}", size=10))
    for i, level in enumerate(levels):
        label = f"{level.value:g}" if level.kind == "concurrency" else f"{level.value:g}/s"
        shapes.append(text(left + _PANEL * (i + 0.5) / len(levels) - 6, _BOTTOM + 15, label, size=10))
    for mode in MODES:
        for kind in ("concurrency", "rate"):
            found = sorted((f for f in figures if f.mode == mode and f.level.kind == kind), key=lambda f: f.level.value)
            points = [point(one) for one in found]
            shapes += [line(points, COLOURS[mode])] if len(points) > 1 else []
            shapes += [dot(x, y, COLOURS[mode]) for x, y in points]
    return shapes
