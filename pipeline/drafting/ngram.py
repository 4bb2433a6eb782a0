"""N-gram lookup: what followed the last tokens when they occurred before (prompt lookup decoding)."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.drafting.base import Draft, DraftContext, Drafter, DraftSession, Offer


class NgramDrafter(Drafter):
    """Looks the last tokens up in the text so far, prompt included.

    Args:
        min_match: shortest match that is offered, in tokens.
        max_match: longer matches are not told apart.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        self._min_match = min_match
        self._max_match = max_match

    def start(self, context: DraftContext) -> NgramSession:
        return NgramSession(context.prompt_ids, self._min_match, self._max_match)


class NgramSession(DraftSession):
    """The text of one request with every place at which its short n-grams ended.

    An offer costs one dictionary look-up and the comparison of a few candidates, however long the text is.
    """

    CANDIDATES = 16  # most recent places that are compared

    def __init__(self, prompt_ids: Sequence[int], min_match: int, max_match: int) -> None:
        self._min = min_match
        self._max = max_match
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], list[int]] = {}
        self._match_end = 0
        self.extend(prompt_ids)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._tokens.append(token)
            end = len(self._tokens)
            if end > self._min:
                # The n-gram that ends at the newest token would match itself: register the one before it.
                gram = tuple(self._tokens[end - 1 - self._min : end - 1])
                self._ends.setdefault(gram, []).append(end - 1)

    def offers(self, limit: int) -> tuple[Offer, ...]:
        tokens = self._tokens
        if limit < 1 or len(tokens) <= self._min:
            return ()
        best = 0
        for end in reversed(self._ends.get(tuple(tokens[-self._min :]), ())[-self.CANDIDATES :]):
            length = self._min
            while length < self._max and length < end and tokens[end - 1 - length] == tokens[-1 - length]:
                length += 1
            if length > best:
                best, self._match_end = length, end
            if length == self._max:
                break
        if not best:
            return ()
        return (Offer("ngram", f"ngram-{best}", limit),)

    def propose(self, offer: Offer, k: int, round_index: int) -> Draft:
        text, start = self._tokens, self._match_end
        ids: list[int] = []
        for i in range(start, start + k):
            # A match that reaches the end of the text goes on with its own draft: a loop repeats itself.
            ids.append(text[i] if i < len(text) else ids[i - len(text)])
        return Draft("ngram", tuple(ids))
