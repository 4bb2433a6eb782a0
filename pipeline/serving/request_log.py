"""One JSON line per request in Triton's log: its id, how it ended, what it cost. Never its text."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pipeline.errors import RequestTimeoutError, SpecDecodeError
from pipeline.orchestrator.statistics import RequestStatistics
from pipeline.serving.workers import WorkerPool

LOG_VARIABLE = "SPECDEC_LOG"
OFF, FAILURES, ALL = "off", "failures", "all"
LEVELS = (OFF, FAILURES, ALL)
_FIELDS = (
    "finish_reason",
    "prompt_tokens",
    "committed_tokens",
    "rounds",
    "spec_rounds",
    "num_draft_tokens",
    "num_accepted_draft_tokens",
    "draft_failures",
    "rule",
    "reproducible",
    "target_reused_tokens",
    "target_computed_tokens",
)
_SECONDS = ("first_token_s", "total_s", "draft_s", "verify_s", "overhead_s")
_MAX_ID_CHARS = 200
_CLOSE_S = 2.0
_MAX_LINES = 1000  # waiting; beyond that lines are lost rather than requests delayed


class RequestLog:
    """Writes from a thread of its own: a line of Triton's logger is a round trip to its process.

    Args:
        utils: `triton_python_backend_utils`.
        level: "off", "failures" (errors that are not the client's, and failing drafts) or "all".
    """

    def __init__(self, utils: Any, level: str = FAILURES) -> None:
        self._logger = utils.Logger
        self._level = level
        self._writer = WorkerPool("request-log", 1, _MAX_LINES)

    @classmethod
    def from_environment(cls, utils: Any) -> RequestLog:
        """The level is the variable SPECDEC_LOG; an unknown one is named in the log, and "failures" taken."""
        level = os.environ.get(LOG_VARIABLE, FAILURES)
        if level not in LEVELS:
            utils.Logger.log_warn(f"{LOG_VARIABLE} = {level!r}: must be one of {', '.join(LEVELS)}; taken: {FAILURES}")
            level = FAILURES
        return cls(utils, level)

    def ended(self, request_id: str, sequence: int, waited_s: float, statistics: RequestStatistics) -> None:
        """An answer came to its end."""
        suspect = statistics.draft_failures > 0
        if self._level == ALL or (self._level == FAILURES and suspect):
            entry = {"event": "answer", "id": request_id[:_MAX_ID_CHARS], "sequence": sequence}
            entry |= {name: getattr(statistics, name) for name in _FIELDS}
            entry |= {"waited_s": round(waited_s, 6)}
            entry |= {name: round(getattr(statistics, name), 6) for name in _SECONDS}
            self._write(self._logger.log_warn if suspect else self._logger.log_info, entry)

    def failed(self, request_id: str, error: BaseException) -> None:
        """A request ended with an error."""
        code = error.code if isinstance(error, SpecDecodeError) else SpecDecodeError.code
        blameless = code in ("INVALID_ARGUMENT", "CANCELLED") or isinstance(error, RequestTimeoutError)
        if self._level == ALL or (self._level == FAILURES and not blameless):
            # What a client sent may stand in the message of its own mistake.
            message = "" if blameless else str(error)[:300]
            entry = {"event": "error", "id": request_id[:_MAX_ID_CHARS], "code": code, "message": message}
            self._write(self._logger.log_info if blameless else self._logger.log_warn, entry)

    def close(self) -> None:
        """Write what waits, within a bound as long as the logger answers."""
        written = threading.Event()
        with suppress(SpecDecodeError):  # full
            self._writer.submit(written.set)
            written.wait(_CLOSE_S)
        for job in self._writer.close():
            job()

    def _write(self, log: Callable[[str], None], entry: dict[str, Any]) -> None:
        with suppress(SpecDecodeError):  # full or closed
            self._writer.submit(lambda: log(json.dumps(entry)))
