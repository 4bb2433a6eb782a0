"""A tokenizer whose tokens are bytes."""

from __future__ import annotations

from collections.abc import Sequence

END = 256


class ByteTokenizer:
    """Token = byte, and an end token without text."""

    byte_fallback = False
    special_ids = frozenset({END})

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < END).decode("utf-8", "replace")

    def token(self, token_id: int) -> str | None:
        return chr(token_id) if token_id <= END else None
