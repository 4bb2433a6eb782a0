"""`specdec soak`: mixed load with cancellations and faults; every answer is compared with plain decoding."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, track

from pipeline.client.bench import check_outputs
from pipeline.client.prompts import BUILT_IN, load_prompts
from pipeline.errors import ServerError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.serving.shared_memory import group_members, regions
from pipeline.soak.client import GrpcClient
from pipeline.soak.client_faults import burst
from pipeline.soak.fault import Fault
from pipeline.soak.leaks import Holdings, holdings, kept_by_triton, processes, settled
from pipeline.soak.ledger import Ledger, shown
from pipeline.soak.load import Case, MixedLoad, patience_s, reference_of
from pipeline.soak.processes import ProcessWatch, slopes
from pipeline.soak.report import FaultReport, SoakReport, print_report, write_json
from pipeline.soak.requests import make_requests
from pipeline.soak.schedule import FaultSchedule, chosen_faults, rounds_of
from pipeline.soak.site import Site, offered_rules, remote_site, started_site
from pipeline.spec import DeploymentSpec

DRAIN_S = 30.0
_LOOK_S = 0.5
_OVERTIME_S = 120.0  # for faults that are late


@dataclass(frozen=True)
class SoakOptions:
    """What `specdec soak` is asked for.

    Attributes:
        minutes: of load.
        clients: that ask at the same time.
        pool: different requests, each asked again and again.
        faults: kinds between commas; None: all that the deployment can be given.
        recovery_s: longest recovery from a killed process, in seconds.
        seed: of everything that is random.
    """

    minutes: float = 10.0
    clients: int = 6
    pool: int = 160
    faults: str | None = None
    recovery_s: float = 10.0
    seed: int = 0
    prompts: Path | None = None
    json_file: Path | None = None


@dataclass(frozen=True)
class Remote:
    """Endpoints of a deployment that somebody else runs, host:port; no metrics, no look at its KV blocks."""

    grpc: str
    http: str
    metrics: str | None = None


def run_soak(spec: DeploymentSpec, remote: Remote | None, options: SoakOptions, console: Console) -> int:
    """Soak, print, write. Returns the exit status: 0 only where every must holds.

    Args:
        remote: None: the spec is served here for the soak, and stopped.
    """
    rules = offered_rules(spec)
    prompts = load_prompts(options.prompts or BUILT_IN)
    check_outputs(options.json_file)
    pids: list[int] = []
    with _site(spec, remote, console) as site:
        faults = chosen_faults(site, options.faults)
        requests = make_requests(options.pool, prompts, rules, options.seed)
        cases = _references(site, requests, console)
        report = _soak(site, cases, faults, options, console, pids)
    left = sum(len(group_members(pid)) + len(regions(pid)) for pid in pids)
    report = replace(report, left=left)
    broken = report.broken(options.recovery_s)
    print_report(console, report, broken)
    if options.json_file is not None:
        write_json(options.json_file, report, broken)
        console.print(f"written to {options.json_file}", highlight=False, soft_wrap=True)
    return 1 if broken else 0


@contextmanager
def _site(spec: DeploymentSpec, remote: Remote | None, console: Console) -> Iterator[Site]:
    if remote is not None:
        yield remote_site(spec, remote.grpc, remote.http, remote.metrics)
    else:
        with started_site(spec, console) as site:
            yield site


def _references(site: Site, requests: list[GenerationRequest], console: Console) -> list[Case]:
    with closing(GrpcClient(site.grpc, patience_s(site.spec))) as client:
        steps = track(requests, "plain decoding, one at a time", console=console, transient=True)
        return [Case(request, reference_of(client, request)) for request in steps]


def _soak(
    site: Site, cases: list[Case], faults: list[Fault], options: SoakOptions, console: Console, pids: list[int]
) -> SoakReport:
    ledger, seconds = Ledger(), 60 * options.minutes
    before = _rested(site, console)
    watch = ProcessWatch(lambda: _noted(site, pids))
    load = MixedLoad(site, cases, ledger, options.clients, options.seed)
    schedule = FaultSchedule(site, faults, seconds, ledger, options.seed)
    started = time.monotonic()
    load.start()
    schedule.start()
    try:
        _wait(console, ledger, schedule, started, seconds)
    finally:
        schedule.stop()
        load.stop()
        ended = time.monotonic()
        watch.close()
    with console.status("draining"):
        after, leaked = settled(lambda: holdings(site), before, DRAIN_S, watch.samples)
    kept = kept_by_triton(site)
    leaked = {name: count - kept.get(name, 0) for name, count in leaked.items() if count > kept.get(name, 0)}
    excused = ledger.excused
    return SoakReport(
        deployment=site.spec.name,
        seconds=ended - started,
        clients=options.clients,
        requests=ledger.requests,
        whole=ledger.whole,
        tokens=ledger.tokens,
        cancelled=ledger.cancelled,
        wrong=shown(ledger.wrong),
        hung=shown(ledger.hung_requests),
        unexcused=shown(ledger.unexcused),
        faults=tuple(_fault_report(fault, ledger, rounds_of(faults, seconds), excused[fault.name]) for fault in faults),
        leaks=leaked,
        left=0,
        kept_by_triton=kept,
        abandoned=after.abandoned,
        slopes=slopes(watch.samples),
        supervisor=tuple(site.said),
        seed=options.seed,
    )


def _rested(site: Site, console: Console) -> Holdings:
    """What is held at rest, once every thread that serves a full load has been started."""
    limits = site.spec.limits
    with console.status("filling every queue once"):
        outcomes = burst(site.grpc, GenerationRequest("One, two,", 2), limits.max_requests + limits.max_queue)
        failed = [outcome.error for outcome in outcomes if outcome.end != "whole"]
        if failed:
            raise ServerError(f"{len(failed)} of {len(outcomes)} requests failed before any fault: {failed[0]}")
        before = holdings(site)
        settled(lambda: holdings(site), Holdings(threads=before.threads, files=before.files), DRAIN_S)
        return holdings(site)


def _wait(console: Console, ledger: Ledger, schedule: FaultSchedule, started: float, seconds: float) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=seconds)
        while (passed := time.monotonic() - started) < seconds or not (schedule.done or passed > seconds + _OVERTIME_S):
            text = (
                f"{ledger.requests} requests, {ledger.cancelled} cancelled, {len(ledger.failures)} errors, "
                f"{len(ledger.wrong)} wrong, {ledger.hung} hung, {len(ledger.windows)} faults {schedule.doing}"
            )
            progress.update(task, completed=min(passed, seconds), description=text)
            time.sleep(_LOOK_S)


def _fault_report(fault: Fault, ledger: Ledger, wanted: int, errors: int) -> FaultReport:
    windows = [window for window in ledger.windows if window.fault is fault]
    damages = [window.damage for window in windows]
    broken = [text for text in ledger.broken_faults if text.startswith(f"{fault.name}: ")]
    return FaultReport(
        name=fault.name,
        wanted=wanted,
        injected=len(windows),
        kills=fault.kills,
        recovery_s=tuple(damage.recovery_s for damage in damages if damage.recovery_s is not None),
        errors=errors,
        problems=(*(damage.problem for damage in damages if damage.problem), *broken),
        notes=tuple(damage.note for damage in damages if damage.note),
        restarts=sum(window.restarted for window in windows),
    )


def _noted(site: Site, pids: list[int]) -> dict[str, psutil.Process]:
    pid = site.server.pid if site.server is not None else None
    if pid is not None and pid not in pids:
        pids.append(pid)
    return processes(site)
