"""`specdec replay`: what other controllers would have made of a recorded trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.client.terminal import print_table
from pipeline.errors import SpecError
from pipeline.orchestrator.controllers import make_controllers
from pipeline.orchestrator.controllers.base import ControllerFactory
from pipeline.orchestrator.trace.line import TraceStart
from pipeline.orchestrator.trace.reader import Trace, read_trace
from pipeline.replay.replay import Replay, ReplayResult
from pipeline.spec import ControllerKind, ControllerSpec

PLAIN = "plain"
FIXED = "fixed"
KINDS: tuple[str, ...] = (*get_args(ControllerKind), PLAIN)
DEFAULT_K = (1, 2, 4, 8)
COLUMNS = ("controller", "tokens/s", "over plain", "mean K", "acceptance", "outcomes", "prices")
NOTES = (
    "outcomes: share of the decisive drafts (kept, or first refused) that the trace tried itself at that place of the "
    "text; the others are drawn from what was kept nearby. Exact where drafts depend on the text before them alone (a "
    "draft model under greedy or coupled decoding), of the same law for other sampling, close for look-up drafts.",
    "prices: share of the time in rounds whose K was measured at that load; the others, plain decoding included where "
    "nothing was decoded plainly, follow the engines' cost tables at the speed of this trace.",
    "Offers where no round began are those of the round before, and the load is taken as recorded: a controller that "
    "would have emptied the server sooner gets no credit for it. Prompts (round 0) are left out.",
)


def run_replay(
    path: Path, console: Console, kinds: Sequence[str], ks: Sequence[int], seed: int, json_file: Path | None
) -> int:
    """Replay, print a table, write JSON. Returns the exit status.

    Args:
        path: of the trace.
        console: to print on.
        kinds: controllers; none: all.
        ks: of `fixed`, and first K of `heuristic` and `pid`; none: some up to what the target verifies.
        seed: of the outcomes that are estimated.
        json_file: written where given.

    Raises:
        SpecError: a kind or K that there is not, or a file that is no trace.
    """
    check_kinds(kinds)
    with console.status(f"reading {path}"):
        trace = read_trace(path)
        most = trace.start.max_draft_len
        for k in ks:
            if not 0 <= k <= most:
                raise SpecError(f"k = {k}: must be between 0 and {most}, what the recorded target verifies")
        replay = Replay(trace, seed)
    if not replay.answers:
        raise SpecError(f"trace {path} holds no round in which anything could be drafted; nothing can be replayed")
    wanted = contenders(trace.start, kinds or KINDS, ks or [k for k in DEFAULT_K if k <= most])
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results = [replay.as_recorded()]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("replaying", total=len(wanted))
        for name, factory in wanted.items():
            progress.update(task, description=f"replaying {name}")
            results.append(replay.run(name, factory))
            progress.advance(task)
    plain = next(result for result in results if result.name == PLAIN)
    _print(console, replay, results, plain)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(_report(trace, replay, results, plain), indent=2) + "\n")
        console.print(f"written to {json_file}", highlight=False)
    return 0


def check_kinds(kinds: Sequence[str]) -> None:
    """Refuse what is no controller.

    Raises:
        SpecError: naming it.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise SpecError(f"controller = {kind!r}: must be one of {', '.join(KINDS)}")


def contenders(start: TraceStart, kinds: Sequence[str], ks: Sequence[int]) -> dict[str, ControllerFactory]:
    """Controllers by name; plain decoding is always among them, the others are compared with it."""

    def make(kind: str, k: int) -> ControllerFactory:
        spec = ControllerSpec.model_validate({"kind": kind, "k": k, "burst": start.burst})
        return make_controllers(spec, start.max_draft_len, start.target_cost, start.draft_cost)

    made: dict[str, ControllerFactory] = {}
    for kind in kinds:
        if kind == FIXED:
            made |= {f"{FIXED} K = {k}": make(FIXED, k) for k in ks if k}
        elif kind != PLAIN:
            made[kind] = make(kind, min(ControllerSpec().k, start.max_draft_len))
    return made | {PLAIN: make(FIXED, 0)}


def _print(console: Console, replay: Replay, results: Sequence[ReplayResult], plain: ReplayResult) -> None:
    trace = replay.trace
    rows = [
        (
            result.name,
            f"{result.tokens_per_s:.1f}",
            f"{result.tokens_per_s / plain.tokens_per_s:.2f}x",
            f"{result.mean_k:.2f}",
            f"{result.acceptance:.2f}" if result.drafted else "-",
            f"{result.recorded_share:.0%}" if result.drafted else "-",
            f"{result.priced_share:.0%}",
        )
        for result in results
    ]
    title = f"{trace.start.deployment}: {len(replay.answers)} answers, {plain.tokens} tokens, predicted"
    print_table(console, title, COLUMNS, rows)
    for note in NOTES:
        console.print(note, style="dim", highlight=False)
    left_out = len(trace.answers) - len(replay.answers)
    for count, what in (
        (left_out, "answers without an offer were left out"),
        (trace.dropped, "rounds were lost while the trace was written"),
        (trace.unreadable, "lines could not be read"),
    ):
        if count:
            console.print(f"{count} {what}", style="yellow", highlight=False)


def _report(trace: Trace, replay: Replay, results: Sequence[ReplayResult], plain: ReplayResult) -> dict[str, Any]:
    return {
        "deployment": trace.start.deployment,
        "recorded_controller": trace.start.controller,
        "answers": len(replay.answers),
        "answers_left_out": len(trace.answers) - len(replay.answers),
        "dropped": trace.dropped,
        "unreadable": trace.unreadable,
        "controllers": [
            {
                **asdict(result),
                "tokens_per_s": result.tokens_per_s,
                "over_plain": result.tokens_per_s / plain.tokens_per_s,
                "mean_k": result.mean_k,
                "acceptance": result.acceptance,
                "recorded_share": result.recorded_share,
                "priced_share": result.priced_share,
            }
            for result in results
        ],
        "notes": list(NOTES),
    }
