"""The law of the first tokens of an answer: its likeliest texts, found without enumerating the others."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.conformance.deployment import Ids
from pipeline.conformance.reference import Law

END = -1
"""Stands for the end token at the end of a text."""


@dataclass(frozen=True)
class Cells:
    """A partition of all texts of up to `length` tokens.

    Attributes:
        masses: probability of each cell: a text, or a beginning that rounding leaves undecided; then all others.
        index: text or beginning -> its cell.
    """

    masses: tuple[float, ...]
    index: dict[Ids, int]

    def cell(self, text: Ids) -> int:
        """The cell that a text lies in."""
        for length in range(len(text), 0, -1):
            if text[:length] in self.index:
                return self.index[text[:length]]
        return len(self.masses) - 1


def likeliest_texts(law_of: Callable[[Ids], Law], length: int, end_id: int | None, floor: float, most: int) -> Cells:
    """Cells with at least `floor` of mass each, the likeliest texts first.

    The cells do not depend on what was sampled. A beginning behind which the law is at an edge is one cell; where
    that is the beginning of all texts, there is one cell only.

    Args:
        law_of: the law behind a text.
        length: tokens of a whole text.
        end_id: ends a text earlier; it counts as a token, END.
        floor: smallest mass of a cell; what is left over joins the last cell.
        most: cells at most.
    """
    heap: list[tuple[float, Ids]] = [(-1.0, ())]
    found: dict[Ids, float] = {}
    while heap and len(found) < most - 1:
        negative, text = heapq.heappop(heap)
        whole = len(text) == length or (text and text[-1] == END)
        law = None if whole else law_of(text)
        if law is None or law.edge:
            if not text:
                return Cells((1.0,), {})
            found[text] = -negative
            continue
        for token in np.flatnonzero(law.p * -negative >= floor):
            longer = (*text, END if token == end_id else int(token))
            heapq.heappush(heap, (negative * float(law.p[token]), longer))
    rest = max(0.0, 1.0 - sum(found.values()))
    if rest < floor and len(found) > 1:  # too small for a cell of its own: the least likely text goes with it
        rest += found.popitem()[1]
    return Cells((*found.values(), rest), {text: i for i, text in enumerate(found)})
