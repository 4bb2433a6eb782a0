"""Makes the virtual environment of this repository. Standard library only: it runs before anything is installed.

Usage: python build/environment.py .venv
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 10), (3, 12)


def main() -> int:
    """Create the environment and install the project into it. Returns the exit status."""
    folder = Path(sys.argv[1]).resolve()
    version = sys.version_info[:2]
    if not OLDEST <= version <= NEWEST:
        print(f"error: Python {version[0]}.{version[1]} is not supported; use 3.10 to 3.12: make PYTHON=python3.11 ...")
        return 1
    missing = missing_packages()
    if missing and not install_packages(missing):
        print(f"error: this Python needs {' and '.join(missing)}: apt-get install {' '.join(missing)}")
        return 1
    started = time.monotonic()
    print(f"  Python {sys.version.split()[0]}, environment {folder}")
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        words = (error.stdout + error.stderr).decode(errors="replace").strip()
        print(f"error: the environment cannot be made: {words}\n(Debian, Ubuntu: apt-get install python3-venv)")
        return 1
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = _with_progress([*pip, "--constraint", str(ROOT / "constraints.txt"), "--editable", f"{ROOT}[dev]"])
    if done.returncode != 0:
        print(f"error: installing failed:\n{done.stderr.strip()[-2000:]}")
        return 1
    print(f"  installed in {time.monotonic() - started:.0f} s")
    return 0


def missing_packages() -> list[str]:
    """Debian packages that this Python lacks: its venv module, and the shared library that Triton's stub embeds."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    missing = []
    if importlib.util.find_spec("ensurepip") is None:
        missing.append(f"python{version}-venv")
    folders = [folder for folder in (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib") if folder]
    shared = any(next(Path(folder).glob(f"libpython{version}.so*"), None) for folder in folders)
    if not shared and ctypes.util.find_library(f"python{version}") is None:
        missing.append(f"libpython{version}")
    return missing


def install_packages(packages: list[str]) -> bool:
    """As root on Debian or Ubuntu (a container, CI): install them. Anybody else is told what to do."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print(f"  installing Debian packages: {' '.join(packages)}", flush=True)
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", *packages]):
        if subprocess.run(command, capture_output=True).returncode != 0:
            return False
    return True


def _with_progress(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, saying every few seconds that it still runs."""
    finished = threading.Event()

    def tick() -> None:
        started = time.monotonic()
        while not finished.wait(10.0):
            print(f"  installing packages: {time.monotonic() - started:.0f} s", flush=True)

    print("  installing packages (torch, Triton, transformers ...): one to three minutes", flush=True)
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        return subprocess.run(command, capture_output=True, text=True)
    finally:
        finished.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
