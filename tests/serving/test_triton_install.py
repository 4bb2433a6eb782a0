"""Where the server comes from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import ServerError
from pipeline.serving import triton_install
from pipeline.serving.triton_install import Program, find_perf_analyzer, find_triton


def test_wheel_is_laid_out_once(tmp_path: Path) -> None:
    install = find_triton(container=tmp_path / "none", cache=tmp_path)
    stub = install.backends / "python" / "triton_python_backend_stub"
    assert install.server.path.is_file() and stub.stat().st_mode & 0o100
    assert (install.backends / "python" / "libtriton_python.so").is_file()
    before = stub.stat().st_mtime_ns, stub.stat().st_ino
    assert find_triton(container=tmp_path / "none", cache=tmp_path) == install
    assert (stub.stat().st_mtime_ns, stub.stat().st_ino) == before
    assert install.origin == "nvidia-pytriton 0.7.0"


def test_container_comes_first(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tritonserver").touch()
    install = find_triton(container=tmp_path)
    assert install.server.path == tmp_path / "bin" / "tritonserver"
    assert install.backends == tmp_path / "backends"


def test_python_without_a_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_install, "_PYTHON", "3.14")
    with pytest.raises(ServerError, match=r"no Python backend stub for Python 3\.14 \(it has: 3\.8, .*3\.13\)"):
        find_triton(container=tmp_path / "none", cache=tmp_path)


def test_wheel_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_install.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ServerError, match="nvidia-pytriton"):
        find_triton(container=tmp_path / "none", cache=tmp_path)


def test_environment_prepends(tmp_path: Path) -> None:
    program = Program(tmp_path, {"PATH": (tmp_path,), "LD_LIBRARY_PATH": (tmp_path, tmp_path / "x")})
    env = program.environment({"PATH": "/bin", "PYTHONHOME": "/wrong"})
    assert env == {"PATH": f"{tmp_path}:/bin", "LD_LIBRARY_PATH": f"{tmp_path}:{tmp_path}/x"}


def test_perf_analyzer_runs(tmp_path: Path) -> None:
    program = find_perf_analyzer(cache=tmp_path)
    done = subprocess.run(
        [program.path, "--version"], env=program.environment(), capture_output=True, text=True, timeout=20
    )
    assert "Perf Analyzer Version 2.51" in done.stdout + done.stderr
    find_perf_analyzer(cache=tmp_path)


def test_no_shared_libpython(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_install.sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(triton_install.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(ServerError, match=r"no shared libpython3"):
        find_triton(container=tmp_path / "none", cache=tmp_path / "cache")
