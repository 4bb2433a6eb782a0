"""Where the loop reports what it did, for a server's metrics: an interface, nothing, and a tally."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from pipeline.metrics import catalogue as metrics
from pipeline.metrics.tally import Count, Tally
from pipeline.orchestrator.answer import CANCELLED
from pipeline.orchestrator.statistics import RequestStatistics, RoundRecord

OWN_TIMEOUT = "TIMEOUT"  # a request's own, which is no failure of the deployment
_REFUSED = ("INVALID_ARGUMENT", "UNAVAILABLE", OWN_TIMEOUT)
_WITHDRAWN = "CANCELLED"


@dataclass(frozen=True)
class LoopState:
    """What an orchestrator is doing: requests decoded, requests waiting for KV blocks, whether its draft is used."""

    running: int
    waiting: int
    draft_usable: bool


class Recorder(ABC):
    """Told by the threads that decode; must be quick and never raise."""

    @abstractmethod
    def round_ended(self, record: RoundRecord) -> None:
        """A round was committed."""

    @abstractmethod
    def draft_failed(self) -> None:
        """A draft call failed; the request goes on."""

    @abstractmethod
    def drafted_ahead(self) -> None:
        """A block is drafted while the one before is verified."""

    @abstractmethod
    def first_token(self, seconds: float) -> None:
        """An answer has its first token, so many seconds after its request arrived."""

    @abstractmethod
    def answer_ended(self, statistics: RequestStatistics) -> None:
        """An answer came to its end, cancelled ones included."""

    @abstractmethod
    def request_failed(self, code: str) -> None:
        """A request ended with an error of this code: refused, withdrawn while it waited, or failed."""


class NoRecorder(Recorder):
    """Forgets everything."""

    def round_ended(self, record: RoundRecord) -> None: ...

    def draft_failed(self) -> None: ...

    def drafted_ahead(self) -> None: ...

    def first_token(self, seconds: float) -> None: ...

    def answer_ended(self, statistics: RequestStatistics) -> None: ...

    def request_failed(self, code: str) -> None: ...


class TallyRecorder(Recorder):
    """Counts in memory.

    Args:
        tally: takes the counts.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def round_ended(self, record: RoundRecord) -> None:
        counts: list[Count] = [
            (metrics.ROUNDS, (record.source,), 1),
            (metrics.DECISIONS, (record.reason,), 1),
            (metrics.COMMITTED_TOKENS, (), record.committed),
        ]
        if record.ahead:
            counts.append((metrics.DRAFTS_AHEAD_USED, (), 1))
        if record.drafted:
            counts += (
                (metrics.DRAFTS, (), 1),
                (metrics.DRAFT_TOKENS, (), record.drafted),
                (metrics.ACCEPTED_TOKENS, (), record.accepted),
                (metrics.SPEC_COMMITTED_TOKENS, (), record.committed),
            )
            counts += [(metrics.DRAFTED_PER_POS, _position(i), 1) for i in range(record.drafted)]
            counts += [(metrics.ACCEPTED_PER_POS, _position(i), 1) for i in range(record.accepted)]
        self._tally.add(
            counts,
            (
                (metrics.DRAFT_LENGTH, record.drafted),
                (metrics.DRAFT_S, record.draft_s),
                (metrics.VERIFY_S, record.verify_s),
                (metrics.OVERHEAD_S, record.overhead_s),
            ),
        )

    def draft_failed(self) -> None:
        self._tally.add([(metrics.DRAFT_FAILURES, (), 1)])

    def drafted_ahead(self) -> None:
        self._tally.add([(metrics.DRAFTS_AHEAD, (), 1)])

    def first_token(self, seconds: float) -> None:
        self._tally.add((), [(metrics.FIRST_TOKEN_S, seconds)])

    def answer_ended(self, statistics: RequestStatistics) -> None:
        counts: list[Count] = [
            (metrics.ANSWERS, (statistics.finish_reason,), 1),
            (metrics.PROMPT_TOKENS, (), statistics.prompt_tokens),
        ]
        if statistics.finish_reason == CANCELLED:
            counts.append((metrics.CANCELLATIONS, (), 1))
        values = []
        if statistics.committed_tokens > 1:
            seconds = statistics.total_s - statistics.first_token_s
            values.append((metrics.TOKEN_S, seconds / (statistics.committed_tokens - 1)))
        self._tally.add(counts, values)

    def request_failed(self, code: str) -> None:
        if code == _WITHDRAWN:
            self._tally.add([(metrics.CANCELLATIONS, (), 1)])
        else:
            self._tally.add([(metrics.REFUSALS if code in _REFUSED else metrics.FAILURES, (code,), 1)])


def _position(index: int) -> tuple[str]:
    return _POSITIONS[index] if index < len(_POSITIONS) else (str(index),)


_POSITIONS = tuple((str(index),) for index in range(64))
