"""Decoding while tokens arrive: text is given out as soon as later tokens can no longer change it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pipeline.text.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
MAX_WINDOW = 16  # tokens decoded again per push while a character stays incomplete
MAX_CHARACTER_BYTES = 4  # UTF-8; a token holds at least one byte


class IncrementalDecoder:
    """The pushes and the flush together give exactly `tokenizer.decode` of all ids.

    Only a short window is decoded again: one token of context, because a first token may lose its leading
    space, and the tokens whose text is not out yet. Cost per token is constant.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_fallback = tokenizer.byte_fallback
        self._window: list[int] = []
        self._emitted = 0  # characters of the window's text that are out

    def push(self, ids: Iterable[int]) -> str:
        """Take the next tokens; return the text they complete, "" if none.

        Never half a character: the tail is held back while it decodes to U+FFFD. In vocabularies with byte
        tokens a run of those is held back whole, because one bad byte spoils the run.
        """
        pieces = []
        for token_id in ids:
            token = self._tokenizer.token(token_id)
            if token is None or token_id in self._tokenizer.special_ids:
                continue  # decode skips them too: as context they would be worth nothing
            self._window.append(token_id)
            if not (self._byte_fallback and BYTE_TOKEN.fullmatch(token)):
                pieces.append(self._advance())
        return "".join(pieces)

    def flush(self) -> str:
        """At the end: what was held back, U+FFFD for characters that stayed incomplete."""
        rest = self._tokenizer.decode(self._window)[self._emitted :]
        self._window, self._emitted = [], 0
        return rest

    def _advance(self) -> str:
        text = self._tokenizer.decode(self._window)
        if self._byte_fallback or not text.endswith(REPLACEMENT):
            certain = text[self._emitted :]
            self._keep_context()
            return certain
        if len(self._window) <= MAX_WINDOW:
            return ""
        return self._drop_broken_bytes(text)

    def _keep_context(self) -> None:
        """Shrink the window to the last token that has text of its own."""
        for kept in range(1, len(self._window)):
            context = self._tokenizer.decode(self._window[-kept:])
            if context:
                self._window = self._window[-kept:]
                self._emitted = len(context)
                return
        self._emitted = len(self._tokenizer.decode(self._window))

    def _drop_broken_bytes(self, text: str) -> str:
        """A long run of bytes that are no UTF-8: give out all but its last character."""
        for kept in range(1, MAX_CHARACTER_BYTES + 1):
            before = self._tokenizer.decode(self._window[:-kept])
            # A cut inside a character would turn one U+FFFD into two.
            if before + self._tokenizer.decode(self._window[-kept:]) == text:
                certain = before[self._emitted :]
                self._window = self._window[-kept:]
                self._emitted = 0
                return certain
        return ""
