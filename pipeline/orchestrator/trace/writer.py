"""Writes a trace beside the rounds: one thread, a bounded queue, and no error that a request could notice."""

from __future__ import annotations

import logging
import queue
import threading
from pathlib import Path

from pipeline.errors import SpecError
from pipeline.orchestrator.trace.line import TraceGap, TraceRound, TraceStart

QUEUE_LINES = 4096  # half a second of eight thousand rounds per second; about 2 MB
BATCH_LINES = 256
CLOSE_S = 5.0

_log = logging.getLogger(__name__)


class TraceWriter:
    """Appends to a file. What the queue or the disk has no room for is counted, and said in a `gap` line.

    Args:
        path: of the file; its folder must exist.
        start: the first line.
        queue_lines: rounds that may wait for the disk.

    Raises:
        SpecError: the file cannot be opened.
    """

    def __init__(self, path: Path, start: TraceStart, queue_lines: int = QUEUE_LINES) -> None:
        self._path = path
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise trace_refused(path, error) from error
        self._queue: queue.Queue[TraceRound | TraceStart | None] = queue.Queue(queue_lines)
        self._lock = threading.Lock()
        self._dropped = 0
        self._unsaid = 0  # dropped since the last gap line
        # The last write ended inside a line; so may that of a server that was killed. A blank line harms nobody.
        self._torn = self._file.seekable() and self._file.tell() > 0
        self._failing = False
        self._closed = False
        self.put(start)
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that were lost so far."""
        return self._dropped

    def put(self, line: TraceRound | TraceStart) -> None:
        """Hand over a line. Never waits, never raises."""
        try:
            if self._closed:
                raise queue.Full
            self._queue.put_nowait(line)
        except queue.Full:
            self._drop(1)

    def close(self) -> None:
        """Write what waits, within a bound, and close the file."""
        if self._closed:
            return
        self._closed = True
        try:
            self._queue.put(None, timeout=CLOSE_S)
        except queue.Full:
            return  # the disk hangs: its thread ends with the process
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        with self._file:
            last = False
            while not last:
                lines = [self._queue.get()]
                while len(lines) < BATCH_LINES and not self._queue.empty():
                    lines.append(self._queue.get())
                last = lines[-1] is None
                self._write([line for line in lines if line is not None])

    def _write(self, lines: list[TraceRound | TraceStart]) -> None:
        with self._lock:
            unsaid, self._unsaid = self._unsaid, 0
        texts = [line.to_json() for line in lines]
        if unsaid:
            texts.insert(0, TraceGap(unsaid).to_json())
        if not texts:
            return
        rest = memoryview(("\n" * self._torn + "\n".join(texts) + "\n").encode())
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
                self._torn = bool(rest)
            self._failing = False
        except (OSError, ValueError) as error:  # ValueError: closed under our hands
            self._drop(len(lines), unsaid)
            if not self._failing:
                _log.warning("trace %s cannot be written: %s; rounds go on without it", self._path, error)
            self._failing = True

    def _drop(self, count: int, said_before: int = 0) -> None:
        with self._lock:
            self._dropped += count
            self._unsaid += count + said_before


def check_trace_path(path: Path) -> None:
    """Refuse a trace file that could not be written, before anything is loaded.

    Raises:
        SpecError: naming the file and why.
    """
    try:
        path.open("ab").close()
    except OSError as error:
        raise trace_refused(path, error) from error


def trace_refused(path: Path, error: OSError) -> SpecError:
    """The error of a trace file that cannot be opened."""
    return SpecError(f"trace = {str(path)!r}: must be a file that can be written: {error.strerror}")
