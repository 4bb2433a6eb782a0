"""What a row's laws depend on besides its logits: the tokens before each position, and where the text may end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

NO_TOKEN = -1


@dataclass(frozen=True, eq=False)
class Context:
    """The history of one row. Position i sees `tokens` and the first i drafts, as plain decoding would.

    Attributes:
        tokens: the sequence up to the row's first position, prompt included.
        drafts: proposed tokens of the positions after that.
        end_id: the token that ends the text, or None.
        min_tokens: tokens from the first position on that may not be end_id.
    """

    tokens: Sequence[int] = ()
    drafts: Sequence[int] = ()
    end_id: int | None = None
    min_tokens: int = 0

    @property
    def holds_end(self) -> bool:
        """True where the end token is impossible at the first position."""
        return self.end_id is not None and self.min_tokens > 0


NO_CONTEXT = Context()


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """How often each token of each row's history is there, by position.

    Attributes:
        row, token: [n] int64, each pair once.
        count: [n, positions] int64.
    """

    row: IntArray
    token: IntArray
    count: IntArray


def count_tokens(contexts: Sequence[Context], positions: int) -> TokenCounts:
    """Count the histories of all rows in one sort."""
    parts = [np.asarray(part, np.int64) for c in contexts for part in (c.tokens, c.drafts[: positions - 1])]
    lengths = np.array([len(part) for part in parts]).reshape(-1, 2)
    tokens = np.concatenate(parts)
    owner = np.repeat(np.arange(len(contexts)), lengths.sum(1))
    # The place in the row, from its first draft on: draft i is seen from position i + 1 on.
    place = np.arange(len(tokens)) - (np.cumsum(lengths.sum(1)) - lengths[:, 1])[owner]
    width = int(tokens.max(initial=0)) + 1
    pairs, pair = np.unique(owner * width + tokens, return_inverse=True)
    seen_from = np.maximum(place + 1, 0)
    count = np.bincount(pair * positions + seen_from, minlength=len(pairs) * positions)
    return TokenCounts(pairs // width, pairs % width, count.reshape(-1, positions).cumsum(1))


def tails(contexts: Sequence[Context], positions: int, length: int) -> IntArray:
    """The last tokens before each position: [rows, positions, length] int64, NO_TOKEN before the sequence."""
    rows = np.full((len(contexts), length + positions - 1), NO_TOKEN, np.int64)
    for row, context in zip(rows, contexts, strict=True):
        last, drafts = context.tokens[-length:], context.drafts[: positions - 1]
        row[length - len(last) : length] = last
        row[length : length + len(drafts)] = drafts
    return np.lib.stride_tricks.sliding_window_view(rows, length, axis=1)
