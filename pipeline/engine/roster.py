"""Which calls run and which wait: admission by free blocks, growth, and preemption where the pool is full.

Calls have a rank: priority, then arrival of the request, then their own. A call holds the blocks of what it has and the
next few tokens, and takes more as it goes. Where there are none, the call of the last rank gives its own back and waits
again, with all that was decided for it; its text cannot change, since only KV is computed anew. The first in rank can
always take what it needs, so that it ends whatever the others do, and then the next is first.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from pipeline.engine.call import Call
from pipeline.engine.run_ahead import RunAhead, RunAheads
from pipeline.kv_cache.cache import KvCache
from pipeline.kv_cache.page_table import PageTable


class Roster:
    """The calls of one engine. Used by its thread.

    Args:
        kv: the pool.
        aheads: rows that wait for their callers; they give way to any call.
        max_calls: calls running at once.

    Attributes:
        running: calls with pages.
        waiting: calls without, by rank.
    """

    def __init__(self, kv: KvCache, aheads: RunAheads, max_calls: int) -> None:
        self._kv = kv
        self._aheads = aheads
        self._max_calls = max_calls
        self._added = 0
        self.running: list[Call] = []
        self.waiting: list[Call] = []

    def __bool__(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, call: Call) -> None:
        """Queue a new call."""
        call.number = self._added
        self._added += 1
        self._wait(call)

    def admit(self) -> Iterator[tuple[Call, RunAhead | None]]:
        """Give pages to whom there is room for, by rank; with the row that a call goes on from, if there is one.

        Nobody overtakes a call that waits for room, and later ones that run already make room for it.
        """
        while self.waiting:
            call = self.waiting[0]
            ahead = self._aheads.claim(call) if len(self.running) < self._max_calls else None
            if ahead is not None:
                call.table = ahead.table
            else:
                call.table = self._open(call)
                if call.table is None:
                    return
            self.waiting.remove(call)
            self.running.append(call)
            yield call, ahead

    def grow(self) -> None:
        """Room for every running call's next pass; who gets none waits again."""
        size = self._kv.pool.tokens_per_block
        for call in sorted(self.running, key=_rank):
            if call.table is None or call.table.capacity >= call.needed:
                continue  # preempted meanwhile, or has it
            # A block more than it needs is for convenience: nobody is put out for that.
            while not (self._kv.extend(call.table, call.wanted(size)) or self._kv.extend(call.table, call.needed)):
                if self._aheads.drop_all():
                    continue
                victim = self._victim(call, call.needed) or call
                self._preempt(victim)
                if victim is call:
                    break

    def remove(self, call: Call) -> None:
        """A call has ended."""
        (self.running if call.table is not None else self.waiting).remove(call)

    def _open(self, call: Call) -> PageTable | None:
        wanted = call.wanted(self._kv.pool.tokens_per_block)
        while True:
            if len(self.running) < self._max_calls:
                table = self._kv.open(call.known, wanted)
                if table is not None:
                    return table
                if self._aheads.drop_all():
                    continue
            victim = self._victim(call, wanted)
            if victim is None:
                return None
            self._preempt(victim)

    def _victim(self, call: Call, wanted: int) -> Call | None:
        """Who makes room for `wanted` tokens of a call: the last in rank, if all that come after it are enough."""
        later = [other for other in self.running if other.rank > call.rank]
        earlier = [other.table for other in self.running if other.rank < call.rank and other.table is not None]
        if not later or self._kv.blocks_beside(earlier) < self._kv.blocks_for(wanted):
            return None
        return max(later, key=_rank)

    def _preempt(self, call: Call) -> None:
        assert call.table is not None
        # What was computed stays in the index until somebody needs the blocks.
        self._kv.close(call.table, call.known[: call.table.length])
        self.running.remove(call)
        call.table = None
        call.preempted += 1
        self._wait(call)

    def _wait(self, call: Call) -> None:
        bisect.insort(self.waiting, call, key=_rank)


def _rank(call: Call) -> tuple[int, int, int]:
    return call.rank
