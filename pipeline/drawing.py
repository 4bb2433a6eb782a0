"""Shapes of plain SVG: no library, no fonts from the network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

LINES = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee")
_FONT = 'font-family="sans-serif"'


def page(width: int, height: int, shapes: Sequence[str]) -> str:
    """A white picture of so many pixels with these shapes."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *shapes, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, size: int = 12, colour: str = "black") -> str:
    """Words whose baseline begins at a point."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" {_FONT} font-size="{size}">{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0) -> str:
    """A filled rectangle, by its upper left corner."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}" '
        f'fill-opacity="{opacity}"/>'
    )


def line(points: Sequence[tuple[float, float]], colour: str) -> str:
    """A line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def dot(x: float, y: float, colour: str) -> str:
    """A mark on a line."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
