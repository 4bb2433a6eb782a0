"""The committed text of one request: tokens in, releasable text out, cut at EOS, a stop word or the length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.text.stop_words import StopWordScanner
from pipeline.text.stream import IncrementalDecoder
from pipeline.text.tokenizer import Tokenizer

STOP, EOS, LENGTH, CANCELLED = "stop", "eos", "length", "cancelled"


@dataclass(frozen=True)
class Committed:
    """What one block of decided tokens became.

    Attributes:
        token_ids: committed tokens; none beyond the end.
        accepted: how many of them are accepted drafts.
        accepted_text, other_text: text released by the accepted drafts, and by the correction, bonus or plain
            tokens after them.
        finish_reason: set when the request ended inside this block.
    """

    token_ids: tuple[int, ...]
    accepted: int
    accepted_text: str
    other_text: str
    finish_reason: str | None


class Answer:
    """Commits tokens one by one; whichever of EOS, stop word and length comes first ends the request.

    Args:
        tokenizer: turns tokens into text.
        max_tokens: tokens to commit at most.
        stop_words: texts that end the answer and are not part of it.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int, stop_words: Sequence[str]) -> None:
        self._decoder = IncrementalDecoder(tokenizer)
        self._scanner = StopWordScanner(stop_words) if stop_words else None
        self._max_tokens = max_tokens
        self.token_count = 0

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return self._max_tokens - self.token_count

    def commit(self, tokens: Sequence[int], accepted: int, ended: bool) -> Committed:
        """Take decided tokens in order.

        Args:
            tokens: accepted drafts first.
            accepted: how many of them are drafts.
            ended: the end token follows the last one.
        """
        kept: list[int] = []
        texts = ["", ""]
        reason: str | None = None
        for i, token in enumerate(tokens):
            kept.append(token)
            self.token_count += 1
            text, stopped = self._release((token,))
            texts[i >= accepted] += text
            if stopped:
                reason = STOP
            elif self.remaining <= 0:
                reason = LENGTH
            if reason is not None:
                break
        if reason is None and ended:
            reason = EOS
        if reason in (EOS, LENGTH):
            tail, stopped = self._flush()
            texts[1] += tail
            if stopped:
                reason = STOP
        return Committed(tuple(kept), min(accepted, len(kept)), texts[0], texts[1], reason)

    def _release(self, tokens: Sequence[int]) -> tuple[str, bool]:
        text = self._decoder.push(tokens)
        if self._scanner is None:
            return text, False
        return self._scanner.push(text)

    def _flush(self) -> tuple[str, bool]:
        """At the end: half characters and held-back beginnings of stop words belong to the text."""
        tail = self._decoder.flush()
        if self._scanner is None:
            return tail, False
        emitted, stopped = self._scanner.push(tail)
        return (emitted, True) if stopped else (emitted + self._scanner.flush(), False)
