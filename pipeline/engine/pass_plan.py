"""What goes into one pass: decode steps, verifies and prefill chunks of different calls, within a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.engine.batch import Row
from pipeline.engine.call import Call

OLDEST_SHARE = 4  # the first call in rank gets a quarter of every pass, if it needs it


def plan_pass(calls: Sequence[Call], budget: int) -> list[tuple[Call, Row]]:
    """Short rows first, so that a long prefill delays nobody by more than a chunk.

    However many short ones come, the first call in rank goes on with every pass: it ends, and then another is first.

    Args:
        calls: running ones, with pages for their next row.
        budget: tokens of the pass; drafts that ride on the last chunk may exceed it.
    """
    planned: list[tuple[Call, Row]] = []
    oldest = min(calls, key=lambda call: call.rank, default=None)
    kept = 0 if oldest is None else min(oldest.remaining, max(1, budget // OLDEST_SHARE))
    for call in sorted(calls, key=lambda call: (call.remaining, call.rank)):
        if call is oldest:
            kept = 0
        if budget - kept <= 0:
            continue
        row = call.next_row(budget - kept)
        planned.append((call, row))
        budget -= len(row.tokens)
    return planned
