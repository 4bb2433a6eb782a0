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
    share = max(1, budget // OLDEST_SHARE)
    kept = 0 if oldest is None else min(oldest.remaining, share)
    for call in sorted(calls, key=lambda call: (call.remaining, call.rank)):
        # Others' drafts may have exceeded the budget: the share is kept all the same.
        limit = max(budget, share) if call is oldest else budget - kept
        if limit <= 0:
            continue
        if call is oldest:
            kept = 0
        row = call.next_row(limit)
        planned.append((call, row))
        budget -= len(row.tokens)
    return planned
