"""Every request and fault of a soak, and what the deployment is to blame for."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.orchestrator.request import GenerationRequest
from pipeline.soak.answer import Answer, Outcome, difference
from pipeline.soak.fault import Fault, Window

_AFTERMATH_S = 2.0  # errors of a fault that are still on their way when service is back
_SHOWN = 20
# A server that is started again cannot tell its clients more than that.
_GONE = re.compile("the connection broke|no server at|Socket closed|Connection reset|Broken pipe|process died")


@dataclass(frozen=True)
class Failure:
    """A request that ended with an error; moments of `time.monotonic`."""

    began: float
    ended: float
    error: str


@dataclass
class Ledger:
    """Counts, from any thread."""

    requests: int = 0
    whole: int = 0
    tokens: int = 0
    cancelled: int = 0
    hung: int = 0
    wrong: list[str] = field(default_factory=list)
    hung_requests: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    broken_faults: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, request: GenerationRequest, reference: Answer, outcome: Outcome, began: float, ended: float) -> None:
        """One request that has ended; what came before a cancellation or an error is compared, too."""
        found = difference(reference, outcome)
        with self._lock:
            self.requests += 1
            self.whole += outcome.end == "whole"
            self.cancelled += outcome.end == "cancelled"
            self.tokens += sum(len(one.token_ids) for one in outcome.answer)
            if found is not None:
                self.wrong.append(f"{found}; {request}")
            if outcome.end == "hung":
                self.hung += 1
                self.hung_requests.append(f"{outcome.error}; {request}")
            if outcome.end == "error":
                self.failures.append(Failure(began, ended, outcome.error))

    def add_window(self, window: Window) -> None:
        """A fault that is over."""
        with self._lock:
            self.windows.append(window)

    def add_broken_fault(self, fault: Fault, error: str) -> None:
        """A fault that could not be injected."""
        with self._lock:
            self.broken_faults.append(f"{fault.name}: {error}")

    @property
    def faults(self) -> Counter[str]:
        return Counter(window.fault.name for window in self.windows)

    @property
    def excused(self) -> Counter[str]:
        """Errors that a fault explains, by the fault's name."""
        return Counter(name for failure in self.failures if (name := excuse(failure, self.windows)))

    @property
    def unexcused(self) -> list[str]:
        """Errors that no fault explains."""
        return [failure.error for failure in self.failures if excuse(failure, self.windows) is None]


def excuse(failure: Failure, windows: Sequence[Window]) -> str | None:
    """The fault that explains an error: one that was going on, that may fail requests, and that the error names."""
    for window in windows:
        over = failure.began <= window.ended + _AFTERMATH_S and failure.ended >= window.began
        named = window.fault.excuses is not None and window.fault.excuses.search(failure.error)
        if over and (named or (window.restarted and _GONE.search(failure.error))):
            return window.fault.name
    return None


def shown(texts: Sequence[str]) -> tuple[str, ...]:
    """The first of many texts."""
    more = (f"... and {len(texts) - _SHOWN} more",) if len(texts) > _SHOWN else ()
    return (*texts[:_SHOWN], *more)
