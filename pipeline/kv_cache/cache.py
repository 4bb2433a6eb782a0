"""The KV cache of one engine: pool, running page tables and prefix index under one set of invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pipeline.kv_cache.block_pool import BlockPool
from pipeline.kv_cache.page_table import PageTable
from pipeline.kv_cache.prefix_index import PrefixIndex

CopyBlock = Callable[[int, int, int], None]  # (source block, destination block, tokens)


class KvCache:
    """Opens a page table for a call and indexes what the call leaves behind.

    A call is opened for a number of tokens and may be extended, as long as there is room. Rollback is `close` with
    fewer tokens than were computed: blocks beyond them go back to the pool and are never indexed.

    Args:
        num_blocks: size of the pool.
        tokens_per_block: tokens of one block.
        copy_block: copies the first tokens of one block's KV to another (copy on write).
        takeover_loss: an idle partial block is taken over without a copy if at most this many of its tokens
            are lost by it. 0 never costs another sequence anything; a draft engine, whose last indexed tokens
            are often rejected, allows a whole block.
    """

    def __init__(self, num_blocks: int, tokens_per_block: int, copy_block: CopyBlock, takeover_loss: int = 0) -> None:
        self.pool = BlockPool(num_blocks, tokens_per_block)
        self.index = PrefixIndex(self.pool)
        self._copy_block = copy_block
        self._takeover_loss = takeover_loss
        self._open: list[PageTable] = []

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.pool.tokens_per_block)

    def open(self, tokens: Sequence[int], capacity: int) -> PageTable | None:
        """Start a call on a text, taking over whatever of it is indexed.

        At least the last token is left to compute, since its logits are wanted.

        Args:
            tokens: the input of the call, at least one.
            capacity: tokens that must fit: input, drafts and output.

        Returns:
            A page table with `length` tokens computed, or None where the pool has no room now.
        """
        match = self.index.match(tokens[:-1])
        for node in match.full:
            self.pool.retain(node.block)
        blocks = [node.block for node in match.full]
        partial = match.partial
        takes_over = (
            partial is not None
            and len(partial.tokens) - match.partial_tokens <= self._takeover_loss
            and self.index.is_idle_leaf(partial)
        )
        if partial is not None:
            self.pool.retain(partial.block)  # eviction below must not free the block we are about to use
        needed = self.blocks_for(capacity) - len(blocks) - (1 if takes_over else 0)
        has_room = self._make_room(needed)
        if not has_room and partial is not None and not takes_over:
            # Holding the source of the copy may be what keeps the pool full: a lone call would wait for ever.
            self.pool.release(partial.block)
            partial = None
            has_room = self._make_room(needed)
        if not has_room:
            for block in blocks:
                self.pool.release(block)
            if partial is not None:
                self.pool.release(partial.block)
            return None

        size = self.pool.tokens_per_block
        table = PageTable(size, blocks, len(blocks) * size, reused_blocks=len(blocks))
        if partial is not None:
            if takes_over:
                blocks.append(self.index.take(partial))
            else:
                blocks.append(self.pool.allocate(after=blocks[-1] if blocks else None))
                self._copy_block(partial.block, blocks[-1], match.partial_tokens)
                table.new_blocks += 1
                needed -= 1
            self.pool.release(partial.block)
            table.length += match.partial_tokens
            table.reused_blocks += 1
        for _ in range(needed):
            blocks.append(self.pool.allocate(after=blocks[-1] if blocks else None))
        table.new_blocks += needed
        table.reused_tokens = table.length
        self._open.append(table)
        return table

    def extend(self, table: PageTable, capacity: int) -> bool:
        """More room for a call that is open.

        Args:
            capacity: tokens that must fit, all in all.

        Returns:
            False where the pool has no room now; the table is as it was.
        """
        needed = max(0, self.blocks_for(capacity) - len(table.blocks))
        if not self._make_room(needed):
            return False
        for _ in range(needed):
            table.blocks.append(self.pool.allocate(after=table.blocks[-1] if table.blocks else None))
        table.new_blocks += needed
        return True

    def close(self, table: PageTable, tokens: Sequence[int]) -> None:
        """End a call: index the KV of `tokens`, give back everything else.

        Args:
            table: a table that `open` returned.
            tokens: the text whose KV is kept, from the first token; at most `table.length` of it is computed.
        """
        assert len(tokens) <= table.length, f"{len(tokens)} tokens to index, {table.length} computed"
        self._open.remove(table)
        kept = self.blocks_for(len(tokens))
        if tokens:
            self.index.insert(tokens, table.blocks[:kept])
        for block in table.blocks:
            self.pool.release(block)
        table.blocks = []

    def blocks_beside(self, tables: Iterable[PageTable]) -> int:
        """Blocks that a call could have if no others than `tables` were open: what they share with it comes on top."""
        return self.pool.num_blocks - len({block for table in tables for block in table.blocks})

    @property
    def available_blocks(self) -> int:
        """Blocks that a new call could get: free, or held by the index alone."""
        return self.pool.free_blocks + self.index.idle_blocks()

    @property
    def used_blocks(self) -> int:
        """Blocks that running calls hold; another thread may ask, and gets the state of about now."""
        return len({block for table in list(self._open) for block in list(table.blocks)})

    def check_integrity(self) -> None:
        """Assert that every block is free or held exactly by those who use it, and the index is sound."""
        holders: Counter[int] = Counter()
        for table in self._open:
            assert len(set(table.blocks)) == len(table.blocks), "a page table holds a block twice"
            assert table.length <= table.capacity
            holders.update(table.blocks)
        holders.update(node.block for node in self.index)
        self.pool.check_integrity(holders)
        self.index.check_integrity()

    def _make_room(self, needed: int) -> bool:
        missing = needed - self.pool.free_blocks
        if missing <= 0:
            return True
        if missing > self.index.idle_blocks():
            return False
        self.index.evict(missing)
        return True
