"""A server under mpirun: it, and not only the program that starts it, is watched, recognised and cleaned up."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from pipeline.serving.launch import MPIRUN, ORCHESTRATOR_ENV, Launch
from pipeline.serving.server import TritonServer
from pipeline.serving.shared_memory import clean_stale, group_members, is_served, regions

from .support import make_spec, scripted_server

pytestmark = pytest.mark.served

# As mpirun does: a process group of its own for what it starts, and an interrupt becomes its end.
PROGRAM = f"""#!{sys.executable}
import os, signal, subprocess, sys
assert tuple(sys.argv[1:{len(MPIRUN)}]) == {MPIRUN[1:]!r} and os.environ["TRTLLM_ORCHESTRATOR"] == "1"
child = subprocess.Popen(sys.argv[{len(MPIRUN)}:], preexec_fn=os.setpgrp)
signal.signal(signal.SIGINT, lambda *_: child.terminate())
sys.exit(child.wait())
"""


@pytest.fixture
def server(tmp_path: Path) -> TritonServer:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(PROGRAM)
    mpirun.chmod(0o755)
    launch = Launch("orchestrator", wrapper=(str(mpirun), *MPIRUN[1:]), env=ORCHESTRATOR_ENV)
    return scripted_server(tmp_path, make_spec(draft={"kind": "none"}), launch=launch)


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "mpirun killed"])
def test_a_life_under_mpirun(server: TritonServer, killed: bool) -> None:
    server.start()
    try:
        server.wait_ready(60)
        server.wait_inference(prompt="count 1")
        pid = server.pid
        assert pid is not None and is_served(pid)
        assert len({os.getpgid(process.pid) for process in group_members(pid)}) > 1, "one group would prove nothing"
        assert len(regions(pid)) == 2
        clean_stale()  # what another server's start does
        assert len(regions(pid)) == 2
        server.wait_inference(prompt="count 1")
        if killed:
            os.kill(pid, signal.SIGKILL)
    finally:
        server.stop()
    assert group_members(pid) == [] and regions(pid) == [] and not is_served(pid)
