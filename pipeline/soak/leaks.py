"""What a server holds: KV blocks, requests, threads, file handles, shared memory; after draining what it began with."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from pipeline.serving.launch import thread_pool_size
from pipeline.serving.local_http import open_local
from pipeline.serving.repository import model_names
from pipeline.serving.shared_memory import SHM, regions
from pipeline.serving.stubs import StubProcess
from pipeline.serving.supervisor import SERVES_AGAIN
from pipeline.soak.processes import ProcessSample, first_half
from pipeline.soak.site import Site

TRITON = "tritonserver"
_SAMPLE = re.compile(r"^(spec_decode_\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LOOK_S = 0.25
_INSTANCE_THREADS, _INSTANCE_FILES = 3, 1  # of a dead instance in tritonserver, besides its thread pool
_METRICS_S = 5.0


@dataclass(frozen=True)
class Holdings:
    """What a deployment holds at one moment.

    Attributes:
        kv_blocks: used by running calls, by model; what the prefix index holds is no leak.
        requests: running and waiting ones.
        threads, files: by process.
        pids: of the processes.
        shared_memory: regions in /dev/shm.
        abandoned: calls that never returned (their process died): each keeps a thread of the orchestrator for ever,
            which is known, counted and bounded.
    """

    kv_blocks: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    threads: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    pids: Mapping[str, int] = field(default_factory=dict)
    shared_memory: int = 0
    abandoned: int = 0


def holdings(site: Site) -> Holdings:
    """Look. What cannot be seen from here (processes of another machine) is left out."""
    metrics = _metrics(site.metrics) if site.metrics else {}
    names = processes(site)
    threads, files = {}, {}
    for name, process in names.items():
        with suppress(psutil.Error):
            threads[name], files[name] = process.num_threads(), process.num_fds()
    pid = site.server.pid if site.server is not None else None
    used = re.compile(r'model="(\w+)",state="used"')
    return Holdings(
        kv_blocks={
            match[1]: int(value)
            for (name, labels), value in metrics.items()
            if name == "spec_decode_kv_blocks" and (match := used.search(labels))
        },
        requests={
            state: int(metrics[key])
            for state in ("running", "waiting")
            if (key := (f"spec_decode_requests_{state}", "")) in metrics
        },
        threads=threads,
        files=files,
        pids={name: process.pid for name, process in names.items()},
        shared_memory=len(regions(pid)) if pid is not None else 0,
        abandoned=int(sum(v for (name, _), v in metrics.items() if name == "spec_decode_abandoned_calls")),
    )


def processes(site: Site) -> dict[str, psutil.Process]:
    """Living processes of a deployment that was started here, by model, and tritonserver itself."""
    if site.server is None or site.server.pid is None:
        return {}
    found: dict[str, psutil.Process] = {}
    for model in model_names(site.spec):
        stub = StubProcess(site.server.pid, model)
        if stub.find() and stub.pid is not None:
            with suppress(psutil.Error):
                found[model] = psutil.Process(stub.pid)
    with suppress(psutil.Error):
        found[TRITON] = psutil.Process(site.server.pid)
    return found


def kept_by_triton(site: Site) -> dict[str, int]:
    """What tritonserver keeps of every model that was loaded again after its process died, by name as in `leaks`.

    The dead instance is never destroyed: requests that will not come back hold it, with the thread pool it had. Seen
    with Triton 2.51, the same for every repair.
    """
    started = max((i for i, line in enumerate(site.said) if SERVES_AGAIN in line), default=-1)
    repairs = sum("loaded again after" in line for line in site.said[started + 1 :])  # the Triton before is gone
    threads = thread_pool_size(site.spec.limits.max_requests * site.spec.draft_calls) + _INSTANCE_THREADS
    return {f"threads of {TRITON}": repairs * threads, f"file handles of {TRITON}": repairs * _INSTANCE_FILES}


def leaks(before: Holdings, after: Holdings, samples: Sequence[ProcessSample] = ()) -> dict[str, int]:
    """What there is more of than before, by name; empty where nothing leaked.

    A process that was started in between has no before: it inherits its parent's sockets and starts its threads when
    they are needed, so it is measured by the most that it held in the first half of its life.

    Args:
        samples: of all processes in between.
    """
    old_threads, old_files = dict(before.threads), dict(before.files)
    for name, pid in after.pids.items():
        if before.pids.get(name) not in (None, pid):
            old_threads[name], old_files[name] = first_half(samples, pid)
    found = {f"KV blocks of {model}": count for model, count in after.kv_blocks.items()}
    found |= {f"requests {state}": count for state, count in after.requests.items()}
    for kind, old, new in (
        ("threads", old_threads, after.threads),
        ("file handles", old_files, after.files),
    ):
        for name, count in new.items():
            found[f"{kind} of {name}"] = count - old.get(name, count)
    found["threads of spec_decode"] = found.get("threads of spec_decode", 0) - (after.abandoned - before.abandoned)
    found[f"entries of {SHM}"] = after.shared_memory - before.shared_memory
    return {name: count for name, count in found.items() if count > 0}


def settled(
    look: Callable[[], Holdings], before: Holdings, patience_s: float, samples: Sequence[ProcessSample] = ()
) -> tuple[Holdings, dict[str, int]]:
    """Wait until nothing is held beyond what was, at most so long.

    Returns:
        What is held then, and its leaks.
    """
    deadline = time.monotonic() + patience_s
    while True:
        now = look()
        found = leaks(before, now, samples)
        if not found or time.monotonic() > deadline:
            return now, found
        time.sleep(_LOOK_S)


def _metrics(address: str) -> dict[tuple[str, str], float]:
    """Values of our own metrics by name and labels; {} where they cannot be had."""
    try:
        with open_local(f"http://{address}/metrics", _METRICS_S) as response:
            text = response.read().decode()
    except OSError:
        return {}
    return {(name, labels): float(value) for name, labels, value in _SAMPLE.findall(text)}
