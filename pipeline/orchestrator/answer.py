"""The committed text of one answer: tokens in, releasable text out, cut at EOS, a stop word or the length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.text.stop_words import StopWordScanner
from pipeline.text.stream import IncrementalDecoder
from pipeline.text.tokenizer import Tokenizer

STOP, EOS, LENGTH, CANCELLED, TIMEOUT = "stop", "eos", "length", "cancelled", "timeout"


@dataclass(frozen=True)
class Committed:
    """What one block of decided tokens became.

    Attributes:
        token_ids: committed tokens; none beyond the end. Those of a stop word are among them.
        accepted: how many of them are accepted drafts.
        texts: text that each token released.
        tail: text that the end released: half characters, beginnings of stop words.
        finish_reason: set when the answer ended inside this block.
        log_probs: one per token, or ().
    """

    token_ids: tuple[int, ...]
    accepted: int
    texts: tuple[str, ...]
    tail: str = ""
    finish_reason: str | None = None
    log_probs: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        return "".join(self.texts) + self.tail

    @property
    def accepted_text(self) -> str:
        """Released by the accepted drafts."""
        return "".join(self.texts[: self.accepted])

    @property
    def other_text(self) -> str:
        """Released by the correction, the bonus, plain tokens, and the end."""
        return "".join(self.texts[self.accepted :]) + self.tail


class Answer:
    """Commits tokens one by one; whichever of EOS, stop word and length comes first ends the answer.

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

    def commit(self, tokens: Sequence[int], accepted: int, ended: bool, log_probs: Sequence[float] = ()) -> Committed:
        """Take decided tokens in order.

        Args:
            tokens: accepted drafts first.
            accepted: how many of them are drafts.
            ended: the end token follows the last one.
            log_probs: one per token, or none.
        """
        texts: list[str] = []
        reason: str | None = None
        for token in tokens:
            self.token_count += 1
            text, stopped = self._release((token,))
            texts.append(text)
            if stopped:
                reason = STOP
            elif self.remaining <= 0:
                reason = LENGTH
            if reason is not None:
                break
        kept, tail = len(texts), ""
        if reason is None and ended:
            reason = EOS
        if reason in (EOS, LENGTH):
            tail, stopped = self._flush()
            if stopped:
                reason = STOP
        return Committed(tuple(tokens[:kept]), min(accepted, kept), tuple(texts), tail, reason, tuple(log_probs[:kept]))

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
