"""Ports, lock, shared memory and log of a server, without the server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.errors import ServerError
from pipeline.serving import shared_memory
from pipeline.serving.ports import FREE_PORTS, choose_ports
from pipeline.serving.server_lock import ServerLock, ServerRecord, read_record
from pipeline.serving.shared_memory import check_space, clean_stale, region_prefix, regions, remove_orphans
from pipeline.serving.shared_memory_need import LawTraffic
from pipeline.serving.triton_log import TritonLog
from pipeline.spec import PortsSpec

from .support import make_spec

DEAD_PID = 2**22 + 1  # above the largest pid that Linux gives


def test_free_ports_differ() -> None:
    ports = choose_ports(FREE_PORTS)
    assert len({ports.http, ports.grpc, ports.metrics} - {0}) == 3


def test_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"ports.grpc = {port}: Address already in use"):
            choose_ports(PortsSpec(http=0, grpc=port, metrics=0))


def test_one_port_twice() -> None:
    port = choose_ports(FREE_PORTS).http
    with pytest.raises(ServerError, match=f"ports.metrics = {port}: another"):
        choose_ports(PortsSpec(http=port, grpc=0, metrics=port))


def test_lock_is_exclusive_and_removed(tmp_path: Path) -> None:
    first, second = ServerLock(tmp_path), ServerLock(tmp_path)
    first.acquire()
    with pytest.raises(ServerError, match="served already by another process"):
        second.acquire()
    first.write(ServerRecord(os.getpid(), 1, 2, 3))
    assert read_record(tmp_path) == ServerRecord(os.getpid(), 1, 2, 3)
    first.release()
    assert list(tmp_path.iterdir()) == [] and read_record(tmp_path) is None
    second.acquire()
    second.release()


def test_lock_outlives_its_owner_through_children(tmp_path: Path) -> None:
    lock = ServerLock(tmp_path)
    lock.acquire()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock.fd,))
    os.close(lock.fd)  # as if the owner had died
    other = ServerLock(tmp_path)
    with pytest.raises(ServerError, match="served already"):
        other.acquire()
    child.communicate(b"\n", timeout=10)
    other.acquire()
    other.release()


def test_lock_in_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="No such file"):
        ServerLock(tmp_path / "none").acquire()


def test_shared_memory_too_small() -> None:
    with pytest.raises(ServerError, match=r"MiB free, the server's models need 1073741824 MiB.*--shm-size"):
        check_space(1 << 50)
    check_space(1)


def test_room_for_what_the_models_grow_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 x 16 requests x 4 laws x 1024 x 4 bytes = 512 KiB beyond the start, with the numbers in the error."""
    spec = make_spec(limits={"max_requests": 16, "max_draft_len": 4})
    laws = LawTraffic.of(spec, 1024)
    assert laws.size == 512 << 10
    usage = SimpleNamespace(free=(4 << 20) + laws.size)
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: usage)
    check_space(4 << 20, laws)
    usage.free -= 1
    with pytest.raises(ServerError, match="4 MiB at their start and 2 x 16 requests x 4 laws x 1024 x 4 bytes ="):
        check_space(4 << 20, laws)
    check_space(4 << 20)
    assert LawTraffic.of(make_spec(draft={"kind": "ngram"}), 1024).size == 0
    greedy = make_spec(draft={"kind": "model", "model": "scripted", "sampling": "greedy"})
    assert LawTraffic.of(greedy, 1024).size == 0
    ahead = make_spec(limits={"max_requests": 16, "max_draft_len": 4}, draft_ahead="on")
    assert LawTraffic.of(ahead, 1024).size == 3 * 16 * 5 * 1024 * 4, "two draft calls of a request, of a token more"


def test_only_regions_of_dead_servers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "SHM", tmp_path)
    dead = tmp_path / f"{region_prefix(DEAD_PID)}abc"
    foreign = tmp_path / "triton_python_backend_shm_region_1"
    elsewhere = tmp_path / f"specdec_1_{DEAD_PID}_abc"  # of another process namespace
    for path in (dead, foreign, elsewhere):
        path.touch()
    assert regions(DEAD_PID) == [dead]
    assert clean_stale() == 1
    assert sorted(tmp_path.iterdir()) == sorted([foreign, elsewhere])


def write_log(path: Path, text: str) -> TritonLog:
    path.write_text(text)
    return TritonLog(path)


PREFIX = "1130 15:45:47.899112 5722"


def test_regions_that_no_model_maps_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a living server: those of a process that died go, those of one that lives stay."""
    monkeypatch.setattr(shared_memory, "SHM", tmp_path)
    program = (
        "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); "
        "print(1, flush=True); sys.stdin.read()"
    )
    kept = tmp_path / "kept"
    kept.write_bytes(b"x" * 4096)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(kept)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as model:
        assert model.stdin is not None and model.stdout is not None
        model.stdout.readline()
        mapped = tmp_path / f"{region_prefix(model.pid)}a"
        kept.rename(mapped)
        (tmp_path / f"{region_prefix(model.pid)}b").touch()
        (tmp_path / f"{region_prefix(DEAD_PID)}c").touch()
        assert remove_orphans(model.pid) == 1
        assert regions(model.pid) == [mapped] and len(regions(DEAD_PID)) == 1
        model.stdin.close()


def test_log_of_a_model_that_failed(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "log",
        f'E{PREFIX} server.cc:241] "CudaDriverHelper has not been initialized."\n'
        f"I{PREFIX} model_lifecycle.cc:849] \"successfully loaded 'draft'\"\n"
        f"E{PREFIX} model_lifecycle.cc:654] \"failed to load 'target' version 1: Internal: EngineError: "
        'no engine in engines/x\\n\\nAt:\\n  model.py(14): initialize\\n"\n'
        "+--------+\n| target |\n",
    )
    assert log.failure() == "model target: EngineError: no engine in engines/x"
    assert log.loaded() == ("draft",)


def test_log_of_a_stub_that_cannot_start(tmp_path: Path) -> None:
    line = "stub: error while loading shared libraries: libcudart.so: cannot open shared object file"
    log = write_log(tmp_path / "log", f'I{PREFIX} a.cc:1] "starting"\n{line}\n')
    assert log.fatal() == line and log.failure() == line


def test_log_with_other_errors_or_none(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert write_log(path, f'E{PREFIX} main.cc:1] "cannot bind"\nx\n').failure() == "cannot bind"
    assert write_log(path, "one\ntwo\n").failure() == "one | two"
    assert write_log(path, "").failure() == "the log is empty"
    assert TritonLog(tmp_path / "none").failure() == "the log is empty"
