"""Who may run: as many requests as fit the KV pools of target and draft together, in the order of their places."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.errors import InvalidRequestError

POLL_S = 0.05  # how often a waiting request looks whether it is still wanted


class Admission:
    """A ticket per request; requests run while the sum of their whole length fits every pool.

    Between rounds a request holds no blocks, only index entries that may be evicted: too many requests at once
    would mean a full prefill every round.

    Args:
        pool_blocks: size of the smaller pool, in blocks.
        tokens_per_block: tokens of one block.
        max_requests: requests running at once, whatever their size.
    """

    def __init__(self, pool_blocks: int, tokens_per_block: int, max_requests: int) -> None:
        self._pool_blocks = pool_blocks
        self._tokens_per_block = tokens_per_block
        self._max_requests = max_requests
        self._free = pool_blocks
        self._running = 0
        self._tickets = itertools.count(1)
        self._arrivals = itertools.count(1)
        self._line: list[tuple[float, int]] = []  # (place, ticket), sorted
        self._changed = threading.Condition()

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        return len(self._line)

    @contextmanager
    def admit(self, tokens: int, check: Callable[[], None], place: float = 0.0) -> Iterator[int]:
        """Wait for room, hold it for the length of the `with` block.

        Args:
            tokens: prompt + max_tokens + K + 1.
            check: called while it waits; what it raises ends the wait.
            place: in line; smaller goes first, and among equals the first comes first. Nobody passes the head of the
                line, however small: a large request would wait for ever.

        Yields:
            Its number in the order in which requests were let in: who passed another in line goes first behind it, too.

        Raises:
            InvalidRequestError: the request would not fit an empty pool.
        """
        blocks = -(-tokens // self._tokens_per_block)
        if blocks > self._pool_blocks:
            raise InvalidRequestError(
                "max_tokens",
                f"{tokens} tokens with the prompt",
                f"the KV pool holds {self._pool_blocks * self._tokens_per_block} tokens",
            )
        with self._changed:
            ticket = next(self._tickets)
            mine = (place, ticket)
            bisect.insort(self._line, mine)
            try:
                while self._line[0] != mine or blocks > self._free or self._running >= self._max_requests:
                    self._changed.wait(POLL_S)
                    check()
            finally:
                self._line.remove(mine)
                self._changed.notify_all()
            self._free -= blocks
            self._running += 1
            arrival = next(self._arrivals)
        try:
            yield arrival
        finally:
            with self._changed:
                self._free += blocks
                self._running -= 1
                self._changed.notify_all()
