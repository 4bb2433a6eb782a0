"""Shared-memory regions of Triton's Python backend: named so that only ours are ever removed.

A region is called specdec_<namespace>_<pid>_..., after the process namespace and the pid of its
tritonserver (or the mpirun that starts it), which leads a session of its own. python_backend leaves regions and stubs
behind when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from pathlib import Path

import psutil

from pipeline.errors import ServerError
from pipeline.serving.shared_memory_need import HOW, LawTraffic

SHM = Path("/dev/shm")
SERVER_NAME = "tritonserver"
_PREFIX = "specdec"
_KILL_WAIT_S = 5.0
NO_LAWS = LawTraffic()


def _namespace() -> str:
    # Containers that share /dev/shm (--ipc=host) do not see each other's pids.
    return f"{os.stat('/proc/self/ns/pid').st_ino & 0xFFFFFFFF:x}"


def region_prefix(pid: int | str) -> str:
    """For --backend-config=python,shm-region-prefix-name= of the server with this pid."""
    return f"{_PREFIX}_{_namespace()}_{pid}_"


def regions(pid: int) -> list[Path]:
    """Regions of the server with this pid."""
    return sorted(SHM.glob(f"{region_prefix(pid)}*"))


def check_space(start: int, laws: LawTraffic = NO_LAWS) -> None:
    """Refuse to start where shared memory is too small, now or under load: when it is full, processes die.

    Args:
        start: bytes that the models begin with.
        laws: what they grow to besides.

    Raises:
        ServerError: with what is needed and what is free.
    """
    try:
        free = shutil.disk_usage(SHM).free
    except OSError as error:
        raise ServerError(f"{SHM} cannot be used: {error.strerror}") from error
    needed = start + laws.size
    if free < needed:
        under_load = f", {start / 2**20:.0f} MiB at their start and {laws} when all sample" if laws.size else ""
        raise ServerError(
            f"{SHM} has {free / 2**20:.0f} MiB free, the server's models need {needed / 2**20:.0f} MiB{under_load}; "
            f"{HOW}"
        )


def group_members(group: int) -> list[psutil.Process]:
    """Living processes of a server's session; zombies do not count.

    The session and not the process group: mpirun gives each process that it starts a group of its own.
    """
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def kill_group(group: int) -> None:
    """Kill a server's session and wait until it is gone."""
    deadline = time.monotonic() + _KILL_WAIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        members = group_members(group)
        if not members:
            return
        for member in members:
            with contextlib.suppress(psutil.Error):
                member.kill()
        time.sleep(0.02)


def remove_regions(pid: int) -> int:
    """Remove the regions of a server that has ended. Returns how many there were."""
    found = regions(pid)
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)


def remove_orphans(pid: int) -> int:
    """Remove the regions of a living server that none of its models maps: Triton leaves those of a process that died.

    Only while no model is being loaded, whose region is there before its process. Returns how many there were.
    """
    mapped = set()
    for process in group_members(pid):
        if _name(process) != SERVER_NAME:  # which may still map what it was not given back
            with contextlib.suppress(psutil.Error, OSError):
                lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
                mapped |= {line.split(maxsplit=5)[5] for line in lines if f"{SHM}/" in line}
    orphans = [path for path in regions(pid) if str(path) not in mapped]
    for path in orphans:
        path.unlink(missing_ok=True)
    return len(orphans)


def clean_stale() -> int:
    """Kill what is left of our servers that died, and remove their regions. Returns how many regions.

    A server counts as dead when its process group holds no tritonserver; its orphans must all be stubs,
    else the group number was given to somebody else and only the regions are ours.
    """
    pattern = re.compile(rf"{_PREFIX}_{_namespace()}_(\d+)_")
    groups = {int(match[1]) for path in SHM.glob(f"{_PREFIX}_*") if (match := pattern.match(path.name))}
    removed = 0
    for group in groups:
        if clean_dead(group):
            removed += remove_regions(group)
    return removed


def is_served(group: int) -> bool:
    """Whether a server lives in this session."""
    return any(_name(process) == SERVER_NAME for process in group_members(group))


def clean_dead(group: int) -> bool:
    """Kill the orphaned stubs of a server. Returns False where the server itself still lives."""
    names = [_name(process) for process in group_members(group)]
    if SERVER_NAME in names:
        return False
    if names and all(name.startswith("triton_python") for name in names):
        kill_group(group)
    return True


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""
