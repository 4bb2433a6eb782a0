"""SHA-256 of large files, computed again only when a file's size or time has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from pipeline.engine.manifest import sha256_file

WORTH_SAYING = 1 << 30  # bytes: below, hashing takes a second or two


class FileHashes:
    """Hashes, kept in a JSON file: 140 GB of weights take minutes to read.

    Args:
        path: where they are kept; a file that cannot be read counts as empty.
        report: told which large file is being hashed.
    """

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        self._path = path
        self._report = report
        try:
            known = json.loads(path.read_text())
        except (OSError, ValueError):
            known = {}
        self._known: dict[str, list[object]] = known if isinstance(known, dict) else {}

    def file(self, path: Path) -> str:
        """Hex SHA-256 of one file."""
        stat = path.stat()
        mark = [stat.st_size, stat.st_mtime_ns]
        entry = self._known.get(str(path.resolve()))
        if isinstance(entry, list) and entry[:2] == mark and len(entry) == 3:
            return str(entry[2])
        if stat.st_size > WORTH_SAYING:
            self._report(f"hashing {path.name} ({stat.st_size / 1e9:.1f} GB)")
        digest = sha256_file(path)
        self._known[str(path.resolve())] = [*mark, digest]
        self._write()
        return digest

    def files(self, paths: Iterable[Path]) -> str:
        """One SHA-256 over the names and hashes of several files, in their order."""
        digest = hashlib.sha256()
        for path in paths:
            digest.update(f"{path.name}:{self.file(path)}\n".encode())
        return digest.hexdigest()

    def moved(self, old: Path, new: Path) -> None:
        """A folder has another name now: what is known of its files goes along."""
        before, after = f"{old.resolve()}/", f"{new.resolve()}/"
        self._known = {
            after + path.removeprefix(before) if path.startswith(before) else path: entry
            for path, entry in self._known.items()
        }
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._known, indent=1) + "\n")


def words_hash(*words: str) -> str:
    """SHA-256 over words; none can run into the next."""
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()
