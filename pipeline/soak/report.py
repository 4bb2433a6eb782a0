"""What a soak found, and whether it may be called good."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from pipeline.client.terminal import print_table

RECOVERY_S = 10.0  # from the death of a step model's process until it serves again
CANCELLED = 0.10


@dataclass(frozen=True)
class FaultReport:
    """One kind of fault.

    Attributes:
        wanted, injected: how often.
        kills: recovery of these must be quick.
        recovery_s: of each.
        errors: requests that failed by it, as it may make them.
        problems: what was not as it must be.
        notes: for people.
        restarts: of the whole server, by it.
    """

    name: str
    wanted: int
    injected: int
    kills: bool
    recovery_s: tuple[float, ...]
    errors: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    restarts: int = 0


@dataclass(frozen=True)
class SoakReport:
    """Figures of a soak.

    Attributes:
        seconds: of load.
        requests: of the mixed load; those of faults are not counted.
        whole: answered to the end, and compared to the end.
        tokens: received.
        cancelled: withdrawn in time by their client; what came before was compared.
        wrong: differences to plain decoding.
        hung: requests without a sign of life for too long.
        unexcused: errors that no fault explains.
        faults: by kind.
        leaks: what was held after draining beyond what was held before, by name.
        kept_by_triton: of models that were loaded again, by name; not among the leaks.
        left: processes and shared memory that were there after the stop.
        abandoned: calls that died with a process of the target or draft; each keeps a thread until the next restart.
        slopes: MB per minute, by process.
        supervisor: what it said.
        seed: of everything that was random.
    """

    deployment: str
    seconds: float
    clients: int
    requests: int
    whole: int
    tokens: int
    cancelled: int
    wrong: tuple[str, ...]
    hung: tuple[str, ...]
    unexcused: tuple[str, ...]
    faults: tuple[FaultReport, ...]
    leaks: Mapping[str, int]
    left: int
    kept_by_triton: Mapping[str, int]
    abandoned: int
    slopes: Mapping[str, float]
    supervisor: tuple[str, ...]
    seed: int

    def broken(self, recovery_limit_s: float = RECOVERY_S) -> list[str]:
        """What a soak must not find; empty where all is well."""
        found = [f"wrong: {text}" for text in self.wrong]
        found += [f"hung: {text}" for text in self.hung]
        found += [f"error without a fault that explains it: {text}" for text in self.unexcused]
        found += [f"leaked: {count} {name}" for name, count in self.leaks.items()]
        found += [f"left after the stop: {self.left} processes or regions"] if self.left else []
        if self.cancelled < CANCELLED * self.requests:
            found.append(f"cancelled: {self.cancelled} of {self.requests}, fewer than {CANCELLED:.0%}")
        for fault in self.faults:
            found += [f"{fault.name}: {problem}" for problem in fault.problems]
            if fault.injected < fault.wanted:
                found.append(f"{fault.name}: injected {fault.injected} times instead of {fault.wanted}")
            slow = [seconds for seconds in fault.recovery_s if seconds >= recovery_limit_s]
            if fault.kills and slow:
                found.append(f"{fault.name}: recovery took {max(slow):.1f} s, the limit is {recovery_limit_s:g} s")
        return found


def print_report(console: Console, report: SoakReport, broken: list[str]) -> None:
    """Tables, and what is broken."""
    rows = [
        ("requests", f"{report.requests} ({60 * report.requests / report.seconds:.0f}/min)"),
        ("answered to the end, compared", str(report.whole)),
        ("tokens", str(report.tokens)),
        ("cancelled", f"{report.cancelled} ({report.cancelled / max(report.requests, 1):.1%})"),
        ("errors that a fault explains", str(sum(fault.errors for fault in report.faults))),
        ("errors without one", str(len(report.unexcused))),
        ("wrong answers", str(len(report.wrong))),
        ("hung", str(len(report.hung))),
        ("leaked", str(sum(report.leaks.values()))),
        *((f"kept by Triton after repairs: {name}", str(n)) for name, n in report.kept_by_triton.items() if n),
        ("left after the stop", str(report.left)),
        ("abandoned calls (a thread each)", str(report.abandoned)),
        *((f"memory of {name}", f"{slope:+.2f} MB/min") for name, slope in report.slopes.items()),
    ]
    title = f"soak of {report.deployment}: {report.seconds / 60:.1f} min, {report.clients} clients, seed {report.seed}"
    print_table(console, title, ("what", "figure"), rows)
    if report.faults:
        faults = [
            (
                fault.name,
                f"{fault.injected}/{fault.wanted}",
                ", ".join(f"{seconds:.1f}" for seconds in fault.recovery_s),
                str(fault.errors),
                str(fault.restarts),
                "; ".join(fault.notes),
            )
            for fault in report.faults
        ]
        print_table(console, "faults", ("kind", "injected", "recovery s", "errors", "restarts", ""), faults)
    for line in broken:
        console.print(f"broken: {line}", style="red", highlight=False, markup=False, soft_wrap=True)
    console.print("every must holds" if not broken else f"{len(broken)} musts are broken", highlight=False)


def write_json(path: Path, report: SoakReport, broken: list[str]) -> None:
    """Everything."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**asdict(report), "broken": broken}, indent=2) + "\n")
