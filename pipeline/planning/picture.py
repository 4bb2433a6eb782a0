"""A plan as a picture: what fills each GPU, and speedup by K. Plain SVG, no library, no fonts from the network."""

from __future__ import annotations

from html import escape
from pathlib import Path

from pipeline.planning.plan import GpuPlan
from pipeline.planning.speculation import Speculation

WIDTH, HEIGHT, MARGIN = 900, 380, 60
COLOURS = {
    "weights": "#4477aa",
    "activations": "#ccbb44",
    "logits": "#ee6677",
    "runtime": "#bbbbbb",
    "kv_pool": "#228833",
}
LABELS = {"weights": "weights", "activations": "activations", "logits": "logits, laws", "kv_pool": "KV pool"}
LINES = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee")
_PANEL = (WIDTH - 3 * MARGIN) / 2
_TOP, _BOTTOM = 70, HEIGHT - 50
_FONT = 'font-family="sans-serif" font-size="12"'


def draw(name: str, plan: GpuPlan) -> str:
    """The SVG text.

    Args:
        name: of the deployment, for the title.
    """
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(MARGIN, 25, f"{name} on {plan.gpus} x {plan.gpu.name}, {plan.context:,} tokens of context", size=16),
        *_memory(plan),
        *_speeds(plan.speeds),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def save(path: Path, name: str, plan: GpuPlan) -> None:
    """Write the picture.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(draw(name, plan), encoding="utf-8")


def _memory(plan: GpuPlan) -> list[str]:
    """One bar per GPU; the draft's parts are lighter than the target's."""
    envelopes = plan.memory.envelopes
    scale = (_BOTTOM - _TOP) / max(max(envelope.used, envelope.capacity) for envelope in envelopes)
    step = _PANEL / len(envelopes)
    width = min(60.0, 0.6 * step)
    parts = [_text(MARGIN, 50, "memory, GB (draft lighter)")]
    for number, envelope in enumerate(envelopes):
        left, level = MARGIN + number * step, float(_BOTTOM)
        for role, model in envelope.models.items():
            for what, colour in COLOURS.items():
                height = getattr(model, what) * scale
                level -= height
                opacity = 1.0 if role == "target" else 0.5
                parts.append(_rect(left, level, width, height, colour, opacity))
        full = _BOTTOM - envelope.capacity * scale
        parts.append(_line([(left - 4, full), (left + width + 4, full)], "black"))
        parts.append(_text(left, full - 5, f"{envelope.capacity / 1e9:.0f}"))
        parts.append(_text(left, _BOTTOM + 15, f"GPU {envelope.device}: {envelope.used / 1e9:.0f}"))
    for number, (what, colour) in enumerate(COLOURS.items()):
        x = MARGIN + number * 80
        parts.append(_rect(x, HEIGHT - 20, 10, 10, colour, 1.0))
        parts.append(_text(x + 13, HEIGHT - 11, LABELS.get(what, what), size=10))
    return parts


def _speeds(speeds: tuple[Speculation, ...]) -> list[str]:
    """Speedup over plain decoding by K, one line per batch."""
    left = 2 * MARGIN + _PANEL
    ks = max(len(speed.outcomes) for speed in speeds) - 1
    top = max(1.0, *(outcome.speedup for speed in speeds for outcome in speed.outcomes)) * 1.1

    def point(k: int, speedup: float) -> tuple[float, float]:
        return left + _PANEL * k / max(ks, 1), _BOTTOM - (_BOTTOM - _TOP) * speedup / top

    title = f"speedup over plain decoding by K, acceptance {speeds[0].acceptance:g}"
    parts = [_text(left, 50, title), _line([point(0, 1), point(ks, 1)], "#999999")]
    parts += [_text(point(k, 0)[0] - 4, _BOTTOM + 15, str(k)) for k in range(ks + 1)]
    parts.append(_text(left - 28, point(0, 1)[1] + 4, "1.0"))
    for number, speed in enumerate(speeds):
        colour = LINES[number % len(LINES)]
        parts.append(_line([point(outcome.k, outcome.speedup) for outcome in speed.outcomes], colour))
        x, y = point(speed.best.k, speed.best.speedup)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(_text(left + number * 75, HEIGHT - 11, f"batch {speed.sequences}", colour=colour))
    return parts


def _text(x: float, y: float, text: str, size: int = 12, colour: str = "black") -> str:
    font = _FONT.replace('"12"', f'"{size}"')
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" {font}>{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, colour: str, opacity: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}" '
        f'fill-opacity="{opacity}"/>'
    )


def _line(points: list[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
