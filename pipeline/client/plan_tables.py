"""Plans as tables."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from pipeline.client.terminal import print_table
from pipeline.planning.constants import Constants
from pipeline.planning.machine_plan import MachinePlan
from pipeline.planning.matrix import Cell
from pipeline.planning.memory import Envelope
from pipeline.planning.plan import GpuPlan
from pipeline.planning.published import Row
from pipeline.planning.speculation import Speculation
from pipeline.tensorrt_spec import OWN_FRACTION

GB = 1e9


def print_gpus(console: Console, plans: Iterable[GpuPlan]) -> None:
    """One line per GPU, for one sequence."""
    rows = []
    for plan in plans:
        speed = plan.speeds[0]
        rows.append(
            (
                f"{plan.gpus} x {plan.gpu.name}",
                "yes" if plan.fits else "no",
                str(plan.sequences),
                f"{speed.plain.tokens_s:.0f}",
                *_best(speed),
                plan.obstacle or "",
            )
        )
    columns = ("GPUs", "fits", "sequences", "plain tokens/s", "with drafts", "K", "speedup", "break-even", "why not")
    print_table(console, "By GPU", columns, rows)


def print_gpu_plan(console: Console, plan: GpuPlan) -> None:
    """Memory and speed on one kind of GPU."""
    rows = [row for envelope in plan.memory.envelopes for row in _memory_rows(envelope)]
    columns = ("GPU", "weights GB", "activations", "logits, laws", "runtime", "KV pool", "sum", "of")
    print_table(console, f"Memory on {plan.gpus} x {plan.gpu.name}", columns, rows)
    pools = ", ".join(f"{role} {tokens:,} tokens" for role, tokens in plan.memory.pool_tokens.items())
    say = console.print
    say(f"KV pools: {pools}; {plan.sequences} sequences of {plan.context:,} tokens at once", soft_wrap=True)
    if plan.balanced_sequences > plan.sequences:
        say(
            f"pools of equal length, `kv_tokens: {plan.balanced_tokens}` and `kv_fraction: {OWN_FRACTION}` "
            f"of both models, hold {plan.balanced_sequences}",
            highlight=False,
            soft_wrap=True,
        )
    if plan.obstacle is not None:
        say(f"does not work: {plan.obstacle}", style="red", highlight=False, soft_wrap=True)
    print_speeds(console, plan.speeds)


def print_speeds(console: Console, speeds: Iterable[Speculation]) -> None:
    """One line per batch size."""
    rows = [
        (str(speed.sequences), f"{speed.plain.tokens_s:.0f}", *_best(speed), f"{speed.ratio:.1f}:1") for speed in speeds
    ]
    columns = ("batch", "plain tokens/s", "with drafts", "best K", "speedup", "break-even", "target:draft step")
    print_table(console, "Speed, expected", columns, rows)


def print_machine_plan(console: Console, plan: MachinePlan) -> None:
    """An embedded deployment."""
    rows = [(role, f"{plan.weights[role] / GB:.2f}", f"{plan.pools[role] / GB:.2f}") for role in plan.weights]
    print_table(console, "Memory of this machine, GB", ("", "weights", "KV pool"), rows)
    console.print(
        f"needed {plan.needed / GB:.2f} GB, available {plan.available / GB:.2f} GB: "
        f"{'fits' if plan.fits else 'does not fit'}; {plan.sequences} sequences of {plan.context:,} tokens at once",
        highlight=False,
        soft_wrap=True,
    )
    if plan.speed is not None:
        print_speeds(console, [plan.speed])
    for line in plan.unknown:
        console.print(f"not known: {line}", highlight=False, soft_wrap=True)


def print_matrix(console: Console, target: str, context: int, acceptance: float, cells: Iterable[Cell]) -> None:
    """Draft x GPU x batch."""
    rows = [
        (
            cell.draft.rsplit("/", 1)[-1],
            f"{cell.gpus} x {cell.gpu}",
            str(cell.batch),
            f"{cell.ratio:.1f}:1",
            str(cell.best_k),
            f"{cell.speedup:.2f}",
            _share(cell.break_even),
            f"{cell.sequences} of {cell.sequences_alone}",
            cell.bottleneck,
        )
        for cell in cells
    ]
    columns = ("draft", "GPUs", "batch", "speed ratio", "K", "speedup", "break-even", "sequences", "bottleneck")
    title = f"{target}: context {context:,}, acceptance {acceptance:g}"
    print_table(console, title, columns, rows)


def print_check(console: Console, rows: Iterable[Row], low: Iterable[Row], high: Iterable[Row]) -> None:
    """Published figures beside the model's; the last column varies the bandwidth share."""
    lines = [
        (
            row.what,
            row.kind,
            f"{row.published:g} {row.unit}",
            f"{row.predicted:.2f}",
            f"{row.error:+.1%}",
            f"{below.error:+.1%} .. {above.error:+.1%}",
        )
        for row, below, above in zip(rows, low, high, strict=True)
    ]
    print_table(console, "Published figures", ("", "kind", "published", "model", "error", "share -/+"), lines)
    for row in rows:
        console.print(f"{row.what}: {row.source}{'; ' + row.note if row.note else ''}", highlight=False, soft_wrap=True)


def constants_line(constants: Constants, acceptance: float) -> str:
    """What the time model assumes, in one line."""
    return (
        f"assumed: acceptance {acceptance:g}, {constants.bandwidth_share:.0%} of bandwidth, "
        f"{constants.flops_share:.0%} of arithmetic, {constants.layer_s * 1e6:.0f} us a layer, "
        f"{constants.round_s * 1e3:g} ms a round between the models; nothing here was measured on a GPU"
    )


def _memory_rows(envelope: Envelope) -> Iterable[tuple[str, ...]]:
    for role, model in envelope.models.items():
        parts = (model.weights, model.activations, model.logits, model.runtime, model.kv_pool)
        yield (f"{envelope.device} {role}", *(f"{part / GB:.2f}" for part in parts), "", "")
    yield (f"{envelope.device}", "", "", "", "", "", f"{envelope.used / GB:.1f}", f"{envelope.capacity / GB:.0f}")


def _best(speed: Speculation) -> tuple[str, str, str, str]:
    best = speed.best
    return f"{best.tokens_s:.0f}", str(best.k), f"{best.speedup:.2f}", _share(speed.break_even)


def _share(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"
