"""One line per request: level by level, without anybody's text, and never in a request's way."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.errors import CancelledError, InvalidRequestError, OverloadedError, StepError
from pipeline.orchestrator.statistics import RequestStatistics, RoundRecord, StatisticsCollector
from pipeline.serving.request_log import ALL, FAILURES, LOG_VARIABLE, OFF, RequestLog

from .fakes import Utils


class Logger:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.slow: Callable[[], object] = lambda: None

    def log_info(self, line: str) -> None:
        self.slow()
        self.lines.append(("info", line))

    def log_warn(self, line: str) -> None:
        self.lines.append(("warn", line))


def make(level: str) -> tuple[RequestLog, Logger]:
    utils: Any = Utils()
    utils.Logger = Logger()
    return RequestLog(utils, level), utils.Logger


def statistics(draft_failures: int = 0) -> RequestStatistics:
    collector = StatisticsCollector(prompt_tokens=3, rule="token", seed=7, reproducible=True)
    collector.draft_failures = draft_failures
    collector.add(RoundRecord(0, "model", "pays", drafted=4, accepted=2, committed=3, text=("secret", "text")))
    return collector.finish("eos", 0.25, 0.5)


@pytest.mark.parametrize(
    ("level", "events"),
    [
        (OFF, []),
        (FAILURES, [("warn", "draft"), ("warn", "INTERNAL"), ("warn", "INTERNAL"), ("warn", "UNAVAILABLE")]),
        (
            ALL,
            [
                ("info", "plain"),
                ("warn", "draft"),
                ("warn", "INTERNAL"),
                ("warn", "INTERNAL"),
                ("warn", "UNAVAILABLE"),
                ("info", "INVALID_ARGUMENT"),
                ("info", "CANCELLED"),
            ],
        ),
    ],
)
def test_levels(level: str, events: list[tuple[str, str]]) -> None:
    log, logger = make(level)
    log.ended("plain", 0, 0.0, statistics())
    log.ended("draft", 0, 0.0, statistics(draft_failures=1))
    log.failed("a", StepError("the target died"))
    log.failed("b", ZeroDivisionError("a bug"))
    log.failed("c", OverloadedError("full"))
    log.failed("d", InvalidRequestError("text_input", "secret", "must be short"))
    log.failed("e", CancelledError("gone"))
    log.close()
    found = [(severity, json.loads(line)) for severity, line in logger.lines]
    assert [(severity, entry.get("code", entry["id"])) for severity, entry in found] == events
    assert "secret" not in str(logger.lines)


def test_a_line_says_what_the_statistics_say() -> None:
    log, logger = make(ALL)
    told = statistics()
    log.ended("x" * 500, 2, 0.125, told)
    log.close()
    entry = json.loads(logger.lines[0][1])
    assert entry["id"] == "x" * 200 and entry["sequence"] == 2 and entry["waited_s"] == 0.125
    assert entry["event"] == "answer" and "seed" not in entry
    for name in ("finish_reason", "committed_tokens", "num_accepted_draft_tokens", "first_token_s", "total_s"):
        assert entry[name] == getattr(told, name)


def test_a_slow_logger_delays_nobody() -> None:
    log, logger = make(ALL)
    free = threading.Event()
    logger.slow = lambda: free.wait(10)
    for index in range(5000):
        log.ended(str(index), 0, 0.0, statistics())
    free.set()
    log.close()
    assert 1000 <= len(logger.lines) <= 1002


def test_unknown_level_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_VARIABLE, "verbose")
    utils = Utils()
    RequestLog.from_environment(utils)
    assert utils.Logger.lines == [f"{LOG_VARIABLE} = 'verbose': must be one of off, failures, all; taken: failures"]
