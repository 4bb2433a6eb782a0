"""Reads a trace file back, as far as it can be read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pipeline.errors import SpecError
from pipeline.orchestrator.trace.line import TRACE_VERSION, TraceGap, TraceLine, TraceRound, TraceStart

_LINE: TypeAdapter[TraceStart | TraceRound | TraceGap] = TypeAdapter(TraceLine)


@dataclass(frozen=True)
class Trace:
    """A recorded deployment.

    Attributes:
        start: its latest start; costs and limits are taken from there.
        answers: the rounds of each answer, in order.
        dropped: rounds that the deployment could not write.
        unreadable: lines that are none, as the last one of a server that was killed.
    """

    start: TraceStart
    answers: tuple[tuple[TraceRound, ...], ...]
    dropped: int = 0
    unreadable: int = 0

    @property
    def rounds(self) -> int:
        return sum(len(rounds) for rounds in self.answers)


def read_trace(path: Path) -> Trace:
    """Read a trace file.

    Raises:
        SpecError: it cannot be read, is none, is of another version, or holds no round.
    """
    start: TraceStart | None = None
    answers: defaultdict[str, list[TraceRound]] = defaultdict(list)
    dropped = unreadable = 0
    try:
        with path.open("rb") as stream:
            for text in stream:
                if not text.strip():
                    continue
                try:
                    line = _LINE.validate_json(text)
                except ValidationError:
                    unreadable += 1
                    continue
                if isinstance(line, TraceStart):
                    if line.version != TRACE_VERSION:
                        raise SpecError(f"trace {path}: version {line.version}; this release reads {TRACE_VERSION}")
                    start = line
                elif isinstance(line, TraceGap):
                    dropped += line.dropped
                else:
                    answers[line.request].append(line)
    except OSError as error:
        raise SpecError(f"trace {path} cannot be read: {error.strerror}") from error
    if start is None:
        raise SpecError(f"trace {path} is no trace: {unreadable} lines, none of them a start")
    if not answers:
        raise SpecError(f"trace {path} holds no round")
    ordered = tuple(tuple(sorted(rounds, key=lambda line: line.round)) for rounds in answers.values())
    return Trace(start, ordered, dropped, unreadable)
