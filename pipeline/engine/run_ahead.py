"""Rows that go on while their caller comes back: plain decoding in bursts then loses no pass between two calls.

A burst is a call of its own, and the next one arrives some milliseconds after it: by then a pass without its row is
under way. Where a caller says that it will continue, its row is computed one token further meanwhile, and the next call
takes over the pages and the logits. Nothing is decided before that call is there, since its seed decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pipeline.engine.batch import Row
from pipeline.engine.call import Call
from pipeline.kv_cache.cache import KvCache
from pipeline.kv_cache.page_table import PageTable

PATIENCE = 8  # passes of others that a row waits for its caller


@dataclass(eq=False)
class RunAhead:
    """One such row.

    Attributes:
        known: the text so far; the KV of its last token is what is computed ahead.
        table: its pages; room for `known` and no more.
        keeps_logits: the caller samples, so that the largest logit is not enough.
        computed: place and finite are of the logits behind `known`.
        place: which output of the head is the largest.
        finite: as in `Best`.
        logits: [1, 1, head width], where they are kept.
        waited: passes since.
    """

    known: list[int]
    table: PageTable
    keeps_logits: bool
    computed: bool = False
    place: int = 0
    finite: bool = True
    logits: Tensor | None = None
    waited: int = 0

    def row(self) -> Row:
        start = len(self.known) - 1
        return Row((self.known[-1],), start, self.table, 1)

    def take(self, place: int, finite: bool, logits: Tensor) -> None:
        """What the pass has found behind the last token; logits [head width] are good until the next pass."""
        self.table.length = len(self.known)
        self.computed, self.place, self.finite = True, place, finite
        if self.keeps_logits:
            self.logits = logits.clone()[None, None]

    def fits(self, call: Call) -> bool:
        """Whether a call can go on from here."""
        return not call.drafts and call.known == self.known and (call.takes_best or self.keeps_logits)


class RunAheads:
    """All rows of one engine that run ahead. Used by its thread."""

    def __init__(self, kv: KvCache) -> None:
        self._kv = kv
        self._rows: list[RunAhead] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    @property
    def pending(self) -> list[RunAhead]:
        """Those that want a pass."""
        return [ahead for ahead in self._rows if not ahead.computed]

    def start(self, call: Call) -> bool:
        """Take over the pages of a call that has ended; false where there is no room for its last token."""
        assert call.table is not None
        if not self._kv.extend(call.table, len(call.known)):
            return False
        self._rows.append(RunAhead(call.known, call.table, not call.takes_best))
        return True

    def claim(self, call: Call) -> RunAhead | None:
        """The row that a new call goes on from, with room for all that the call may compute; None if there is none."""
        for ahead in self._rows:
            if ahead.known == call.known:
                ahead.table.new_blocks = 0  # what came before was counted by the call before
                if ahead.fits(call) and self._kv.extend(ahead.table, call.capacity):
                    self._rows.remove(ahead)
                    return ahead
                self.drop(ahead)
                return None
        return None

    def pass_over(self) -> None:
        """A pass has ended: who has waited for long is given up."""
        for ahead in list(self._rows):
            ahead.waited += ahead.computed
            if ahead.waited > PATIENCE:
                self.drop(ahead)

    def drop(self, ahead: RunAhead) -> None:
        """Index what was computed, and give back the rest."""
        self._rows.remove(ahead)
        self._kv.close(ahead.table, ahead.known[: ahead.table.length])

    def drop_all(self) -> bool:
        """Make room; true if there was anything to drop."""
        found = bool(self._rows)
        for ahead in list(self._rows):
            self.drop(ahead)
        return found
