"""What a client was sent for one request, and how it differs from plain decoding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from pipeline.client.triton_client import Reply

Answer = tuple["OneAnswer", ...]
End = Literal["whole", "cancelled", "error", "hung"]


@dataclass(frozen=True)
class OneAnswer:
    """One of the answers to a request (num_return_sequences): whole, or what came before its end.

    Attributes:
        log_probs: one per token, where asked for.
        finish_reason: None where its end did not come.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    log_probs: tuple[float, ...] = ()
    finish_reason: str | None = None


@dataclass(frozen=True)
class Outcome:
    """How a request ended for its client.

    Attributes:
        end: whole: every answer has its end; cancelled: by the client; error: the server said so, or the connection
            broke; hung: nothing came for too long.
        answer: what had come until then.
        error: its words.
    """

    end: End
    answer: Answer = ()
    error: str = ""


@dataclass
class Collector:
    """Puts an answer together from its pieces, which may come in any order of `sequence_index`."""

    _found: dict[int, OneAnswer] = field(default_factory=dict)

    def add(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            old = self._found.get(reply.sequence_index, OneAnswer())
            self._found[reply.sequence_index] = OneAnswer(
                old.token_ids + reply.token_ids,
                old.text + reply.text,
                old.log_probs + reply.log_probs,
                reply.finish_reason or old.finish_reason,
            )

    @property
    def answer(self) -> Answer:
        return tuple(self._found.get(i, OneAnswer()) for i in range(max(self._found, default=-1) + 1))


def difference(reference: Answer, outcome: Outcome) -> str | None:
    """Where an outcome leaves plain decoding: None where it does not. What came before a cancellation counts, too."""
    whole = outcome.end == "whole"
    if whole and len(outcome.answer) != len(reference):
        return f"{len(outcome.answer)} answers instead of {len(reference)}"
    for index, (want, got) in enumerate(zip(reference, outcome.answer, strict=False)):
        for name in ("token_ids", "text", "log_probs"):
            wanted, found = getattr(want, name), getattr(got, name)
            if (found != wanted) if whole else (found != wanted[: len(found)]):
                return f"answer {index}: {name} is {found!r}, plain decoding gives {wanted!r}"
        if whole and got.finish_reason != want.finish_reason:
            return f"answer {index}: finish_reason is {got.finish_reason}, plain decoding gives {want.finish_reason}"
    return None
