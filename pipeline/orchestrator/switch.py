"""The deployment-wide switch: speculation as the controllers decide, off, or at one K; changed while requests run."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.errors import SpecError

AUTO, OFF = "auto", "off"
SWITCH_NAME = ".speculation"  # in the engines folder, which is the operator's: no client can write there
LOOK_S = 0.2  # between two looks at the file
_MOST_BYTES = 32

Setting = int | str
_log = logging.getLogger(__name__)


def parse_setting(text: str, largest: int) -> Setting:
    """ "auto", "off" or a K.

    Raises:
        SpecError: it is none of them, or more than the target verifies.
    """
    word = text.strip()
    if word in (AUTO, OFF):
        return word
    if word.isascii() and word.isdigit() and int(word) <= largest:
        return int(word)
    raise SpecError(f"speculation = {word!r}: must be {AUTO}, {OFF} or a number up to max_draft_len = {largest}")


def write_setting(path: Path, setting: Setting) -> None:
    """Put a setting where a running deployment finds it, whole or not at all.

    Raises:
        SpecError: the file cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(f"{setting}\n")
        temporary.replace(path)
    except OSError as error:
        raise SpecError(f"speculation cannot be switched: {path}: {error.strerror}") from error


class SpeculationSwitch:
    """What holds at present; looked at before every round.

    Args:
        start: as long as no file says otherwise.
        largest: K that the target can verify.
        path: the file; None: the switch stays as it starts.
        clock: seconds.
    """

    def __init__(
        self, start: Setting, largest: int, path: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._start = start
        self._largest = largest
        self._path = path
        self._clock = clock
        self._setting = start
        self._seen: tuple[int, int, int] | None = None
        self._next_look = -1.0

    @property
    def k(self) -> int | None:
        """None: as the controllers decide; 0: plain decoding; else K."""
        if self._path is not None and self._clock() >= self._next_look:
            self._look(self._path)
        if self._setting == AUTO:
            return None
        return 0 if self._setting == OFF else int(self._setting)

    def _look(self, path: Path) -> None:
        self._next_look = self._clock() + LOOK_S
        try:
            found = path.stat()
        except OSError:
            self._setting, self._seen = self._start, None
            return
        seen = found.st_ino, found.st_mtime_ns, found.st_size
        if seen == self._seen:
            return
        self._seen = seen
        try:
            with path.open("rb") as stream:
                text = stream.read(_MOST_BYTES).decode()
            self._setting = parse_setting(text, self._largest)
        except (OSError, UnicodeDecodeError, SpecError) as error:
            _log.warning("%s is ignored, speculation stays %s: %s", path, self._setting, error)
