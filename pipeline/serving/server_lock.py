"""One server per engines folder, held by the server's own processes."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.errors import ServerError
from pipeline.serving.shared_memory import clean_dead, remove_regions

LOCK_NAME = ".serving.lock"
_RELEASE_S = 5.0


@dataclass(frozen=True)
class ServerRecord:
    """What a running server wrote into its lock. Ports are on 127.0.0.1."""

    pid: int
    http: int
    grpc: int
    metrics: int


class ServerLock:
    """An flock on <engines>/.serving.lock.

    The descriptor is inherited by tritonserver and its stubs, so that the lock outlives the process that
    started them, and is released when the last of them dies, however it dies.
    """

    def __init__(self, engines_dir: Path) -> None:
        self._path = engines_dir / LOCK_NAME
        self._fd: int | None = None

    @property
    def fd(self) -> int:
        """For `pass_fds`."""
        assert self._fd is not None, "the lock is not held"
        return self._fd

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ServerError: another server holds it (named by pid and port), or the folder is missing.
        """
        if self._try():
            return
        record = read_record(self._path.parent)
        deadline = time.monotonic() + _RELEASE_S
        while record is not None and clean_dead(record.pid) and time.monotonic() < deadline:
            remove_regions(record.pid)
            if self._try():
                return
            time.sleep(0.02)  # a killed process leaves the process table before its files are closed
        who = f"by process {record.pid} (http 127.0.0.1:{record.http})" if record else "by another process"
        raise ServerError(f"engines in {self._path.parent} are served already {who}; stop that server first")

    def write(self, record: ServerRecord) -> None:
        """Say who holds the lock."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, (json.dumps(asdict(record)) + "\n").encode(), 0)

    def release(self) -> None:
        """Remove the lock; does nothing where it is not held."""
        if self._fd is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = None

    def _try(self) -> bool:
        while True:
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise ServerError(f"lock {self._path} cannot be written: {error.strerror}") from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                return False
            # The holder before us may have removed the file between our open and our lock.
            try:
                if os.fstat(fd).st_ino == os.stat(self._path).st_ino:
                    self._fd = fd
                    return True
            except FileNotFoundError:
                pass
            os.close(fd)


def read_record(engines_dir: Path) -> ServerRecord | None:
    """Who serves these engines, or None where nobody says so."""
    try:
        return ServerRecord(**json.loads((engines_dir / LOCK_NAME).read_text()))
    except (OSError, ValueError, TypeError):
        return None
