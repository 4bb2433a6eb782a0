"""A plan as a picture: what fills each GPU, and speedup by K."""

from __future__ import annotations

from pathlib import Path

from pipeline.drawing import LINES, dot, line, page, rect, text
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
_PANEL = (WIDTH - 3 * MARGIN) / 2
_TOP, _BOTTOM = 70, HEIGHT - 50


def draw(name: str, plan: GpuPlan) -> str:
    """The SVG text.

    Args:
        name: of the deployment, for the title.
    """
    title = f"{name} on {plan.gpus} x {plan.gpu.name}, {plan.context:,} tokens of context"
    return page(WIDTH, HEIGHT, [text(MARGIN, 25, title, size=16), *_memory(plan), *_speeds(plan.speeds)])


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
    parts = [text(MARGIN, 50, "memory, GB (draft lighter)")]
    for number, envelope in enumerate(envelopes):
        left, level = MARGIN + number * step, float(_BOTTOM)
        for role, model in envelope.models.items():
            for what, colour in COLOURS.items():
                height = getattr(model, what) * scale
                level -= height
                opacity = 1.0 if role == "target" else 0.5
                parts.append(rect(left, level, width, height, colour, opacity))
        full = _BOTTOM - envelope.capacity * scale
        parts.append(line([(left - 4, full), (left + width + 4, full)], "black"))
        parts.append(text(left, full - 5, f"{envelope.capacity / 1e9:.0f}"))
        parts.append(text(left, _BOTTOM + 15, f"GPU {envelope.device}: {envelope.used / 1e9:.0f}"))
    for number, (what, colour) in enumerate(COLOURS.items()):
        x = MARGIN + number * 80
        parts.append(rect(x, HEIGHT - 20, 10, 10, colour, 1.0))
        parts.append(text(x + 13, HEIGHT - 11, LABELS.get(what, what), size=10))
    return parts


def _speeds(speeds: tuple[Speculation, ...]) -> list[str]:
    """Speedup over plain decoding by K, one line per batch."""
    left = 2 * MARGIN + _PANEL
    ks = max(len(speed.outcomes) for speed in speeds) - 1
    top = max(1.0, *(outcome.speedup for speed in speeds for outcome in speed.outcomes)) * 1.1

    def point(k: int, speedup: float) -> tuple[float, float]:
        return left + _PANEL * k / max(ks, 1), _BOTTOM - (_BOTTOM - _TOP) * speedup / top

    title = f"speedup over plain decoding by K, acceptance {speeds[0].acceptance:g}"
    parts = [text(left, 50, title), line([point(0, 1), point(ks, 1)], "#999999")]
    parts += [text(point(k, 0)[0] - 4, _BOTTOM + 15, str(k)) for k in range(ks + 1)]
    parts.append(text(left - 28, point(0, 1)[1] + 4, "1.0"))
    for number, speed in enumerate(speeds):
        colour = LINES[number % len(LINES)]
        parts.append(line([point(outcome.k, outcome.speedup) for outcome in speed.outcomes], colour))
        x, y = point(speed.best.k, speed.best.speedup)
        parts.append(dot(x, y, colour))
        parts.append(text(left + number * 75, HEIGHT - 11, f"batch {speed.sequences}", colour=colour))
    return parts
