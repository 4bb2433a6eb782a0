"""`specdec bench --orchestrator`: what the loop itself can do, without models and without a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import track

from pipeline.bench.orchestrator_alone import IN_FLIGHT, AlonePoint, is_flat, measure_alone
from pipeline.client.terminal import print_table
from pipeline.spec import ControllerSpec, DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

FLAT = 0.10  # rounds per second that 256 requests may cost, of those of one
FIXED = ControllerSpec(kind="fixed", k=4)


def bench_orchestrator(spec: DeploymentSpec, console: Console, in_flight: Sequence[int] = IN_FLIGHT) -> dict[str, Any]:
    """Measure and print. Returns the part `orchestrator` of a report.

    Raises:
        EngineError: the target's tokenizer is missing.
    """
    tokenizer = Tokenizer.load(spec.engine_dir("target"))
    # K fixed is the same work everywhere; the spec's own controller and a thread per request are what is deployed.
    rows = [(FIXED, False), (spec.controller, False), (FIXED, True)]
    work = [(controller, threads, size) for controller, threads in rows for size in in_flight]
    points = [
        measure_alone(tokenizer, controller, size, threads)
        for controller, threads, size in track(work, "the orchestrator alone", console=console, transient=True)
    ]
    print_alone(console, points)
    return {"points": [asdict(point) for point in points]}


def print_alone(console: Console, points: Sequence[AlonePoint]) -> None:
    """One row per point, and whether more requests in flight cost anything."""
    rows = [
        (
            f"{point.driver}, {point.controller}",
            str(point.in_flight),
            str(point.rounds),
            f"{point.tokens / point.rounds:.2f}",
            f"{point.rounds_per_cpu_s:.0f}",
            f"{point.rounds_per_s:.0f}",
            "-" if point.bytes_per_request is None else f"{point.bytes_per_request / 1e3:.1f}",
        )
        for point in points
    ]
    columns = ("driver, controller", "at once", "rounds", "t/round", "/s/core", "/s", "KB each")
    print_table(
        console,
        "the orchestrator alone, models that cost nothing: rounds per second, memory per request",
        columns,
        rows,
    )
    for name in dict.fromkeys((point.driver, point.controller) for point in points):
        members = [point for point in points if (point.driver, point.controller) == name]
        slowest = min(point.rounds_per_cpu_s for point in members) / members[0].rounds_per_cpu_s
        said = "flat" if is_flat(members, FLAT) else "not flat"
        console.print(
            f"{', '.join(name)}: {said}; the slowest has {slowest:.2f} of the rounds per second of "
            f"{members[0].in_flight} in flight",
            highlight=False,
            soft_wrap=True,
        )
