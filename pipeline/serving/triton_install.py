"""Finds a Triton server, and perf_analyzer of the same release, on this machine.

A server that NVIDIA's container installed is taken as it is. Otherwise the one inside the `nvidia-pytriton`
wheel is used: its Python backend lies apart from the stubs, one stub per Python version, so a backend
folder with both is laid out once inside the virtual environment.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ServerError

CONTAINER = Path("/opt/tritonserver")  # where NVIDIA's images have it
_CACHE = "specdec-triton"
_STUB = "triton_python_backend_stub"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Program:
    """An executable and the variables it needs.

    Attributes:
        path: of the executable.
        prepend: path lists, put before what the variable holds already.
    """

    path: Path
    prepend: Mapping[str, tuple[Path, ...]]

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The whole environment to start it with; `base` is this process's by default."""
        env = dict(os.environ if base is None else base)
        env.pop("PYTHONHOME", None)  # the stub embeds Python and finds its own
        for name, folders in self.prepend.items():
            parts = [str(folder) for folder in folders] + ([env[name]] if env.get(name) else [])
            env[name] = os.pathsep.join(parts)
        return env


@dataclass(frozen=True)
class TritonInstall:
    """A usable Triton server.

    Attributes:
        server: `tritonserver`.
        backends: for --backend-directory.
        origin: where it comes from, for people.
    """

    server: Program
    backends: Path
    origin: str


def find_triton(container: Path = CONTAINER, cache: Path | None = None) -> TritonInstall:
    """The server to use: NVIDIA's container's, else the wheel's.

    Args:
        container: an installation folder with bin/ and backends/.
        cache: where the wheel's backend folder is laid out; inside the virtual environment by default.

    Raises:
        ServerError: there is none, or it cannot run the Python of this process.
    """
    if (container / "bin" / "tritonserver").is_file():
        return TritonInstall(
            Program(container / "bin" / "tritonserver", {"PATH": (Path(sys.executable).parent,)}),
            container / "backends",
            str(container),
        )
    wheel = _wheel()
    server = wheel / "tritonserver" / "bin" / "tritonserver"
    if not server.is_file():
        raise ServerError(f"the nvidia-pytriton wheel has no {server}; reinstall nvidia-pytriton")
    version = importlib.metadata.version("nvidia-pytriton")
    backends = _lay_out(wheel / "tritonserver", (cache or _default_cache()) / f"{version}-py{_PYTHON}")
    prepend = {
        # The stub finds this virtual environment by the first python3 on PATH.
        "PATH": (Path(sys.executable).parent,),
        "LD_LIBRARY_PATH": (_libraries(wheel), _libpython_folder()),
    }
    return TritonInstall(Program(server, prepend), backends, f"nvidia-pytriton {version}")


def require_backend(install: TritonInstall, backend: str) -> None:
    """Refuse a server that has no such backend, before anything is started.

    Raises:
        ServerError: with where it was looked for.
    """
    folder = install.backends / backend
    if not folder.is_dir():
        raise ServerError(
            f"the Triton server of {install.origin} has no backend {backend} (looked for {folder}): "
            "serve this inside NVIDIA's TensorRT-LLM container (docs/gpu.md)"
        )


def find_perf_analyzer(cache: Path | None = None) -> Program:
    """perf_analyzer: of tritonclient's wheel beside this Python, else on PATH, as deploy/Dockerfile puts it there.

    Raises:
        ServerError: there is none.
    """
    beside = Path(sys.executable).parent / "perf_analyzer"
    if not beside.is_file() or importlib.util.find_spec("pytriton") is None:
        found = shutil.which("perf_analyzer")
        if found is None:
            raise ServerError("perf_analyzer is missing; install the package perf-analyzer")
        return Program(Path(found), {})
    # The wheel's program asks for two libraries under their plain names, which pytriton carries under
    # longer ones.
    folder = (cache or _default_cache()) / "perf_libs"
    folder.mkdir(parents=True, exist_ok=True)
    libraries = _libraries(_wheel())
    for name, pattern in (("libb64.so.0d", "libb64-*.so.0d"), ("libcudart.so.12", "libcudart-*.so.12*")):
        sources = sorted(libraries.glob(pattern))
        if not sources:
            raise ServerError(f"no {pattern} in {libraries}, which perf_analyzer needs; reinstall nvidia-pytriton")
        if (folder / name).resolve() != sources[0].resolve():
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(sources[0])
    return Program(beside, {"LD_LIBRARY_PATH": (folder,)})


def _default_cache() -> Path:
    return Path(sys.prefix) / _CACHE


def _wheel() -> Path:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ServerError(f"no Triton server: neither {CONTAINER} nor the nvidia-pytriton package is installed")
    return Path(next(iter(spec.submodule_search_locations)))


def _libraries(wheel: Path) -> Path:
    return wheel.parent / "nvidia_pytriton.libs"


def _lay_out(server: Path, folder: Path) -> Path:
    """Copy backend and stub into `folder`/python once; a concurrent copy is harmless. Returns `folder`."""
    done = folder / "python"
    stubs = server / "python_backend_stubs"
    stub = stubs / _PYTHON / _STUB
    if not stub.is_file():
        known = ", ".join(sorted((path.name for path in stubs.glob("3.*")), key=lambda name: int(name[2:])))
        raise ServerError(
            f"this Triton server has no Python backend stub for Python {_PYTHON} (it has: {known}); "
            "create the virtual environment with one of those"
        )
    if (done / _STUB).is_file():
        return folder
    backend = server / "backends" / "python"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = Path(scratch) / "python"
            fresh.mkdir()
            for source in (backend / "libtriton_python.so", backend / "triton_python_backend_utils.py", stub):
                shutil.copy2(source, fresh / source.name)
            fresh.rename(done)
    except OSError as error:
        if not (done / _STUB).is_file():
            raise ServerError(f"the Triton backend folder {folder} cannot be written: {error}") from error
    return folder


def _libpython_folder() -> Path:
    """Where the shared libpython lies that the stub embeds; without it the stub cannot start and Triton hangs."""
    name = f"libpython{_PYTHON}.so"
    candidates = [sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix) / "lib"]
    for candidate in candidates:
        if candidate and next(Path(candidate).glob(f"{name}*"), None):
            return Path(candidate)
    if ctypes.util.find_library(f"python{_PYTHON}"):
        return Path("/usr/lib")  # the loader finds it by itself
    raise ServerError(
        f"no shared {name} for this Python ({sys.base_prefix}); install it (Debian: libpython{_PYTHON}; "
        "pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared)"
    )
