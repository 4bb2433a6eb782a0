"""A fixed number of KV blocks with reference counts."""

from __future__ import annotations

from pipeline.errors import EngineError


class BlockPool:
    """Hands out block numbers; knows nothing about tokens.

    A block is free (count 0) or held once by every page table and index entry that uses it.

    Args:
        num_blocks: size of the pool, fixed.
        tokens_per_block: tokens of one block.
    """

    def __init__(self, num_blocks: int, tokens_per_block: int) -> None:
        if num_blocks < 1 or tokens_per_block < 1:
            raise EngineError(f"a KV pool of {num_blocks} x {tokens_per_block} tokens cannot hold anything")
        self.num_blocks = num_blocks
        self.tokens_per_block = tokens_per_block
        self._counts = [0] * num_blocks
        # Popped from the end: low numbers first, so that a lone sequence gets neighbouring blocks.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def count(self, block: int) -> int:
        """References held on a block."""
        return self._counts[block]

    def allocate(self, after: int | None = None) -> int:
        """Take a free block, held once; the one behind `after` where that is free and cheap to find.

        Raises:
            EngineError: the pool is empty; callers reserve first, so this is a fault of theirs.
        """
        if not self._free:
            raise EngineError(f"KV pool exhausted: all {self.num_blocks} blocks are held")
        if after is not None and after + 1 < self.num_blocks and self._counts[after + 1] == 0:
            self._free.remove(after + 1)
            block = after + 1
        else:
            block = self._free.pop()
        self._counts[block] = 1
        return block

    def retain(self, block: int) -> None:
        """Add a reference to a held block."""
        if self._counts[block] == 0:
            raise EngineError(f"block {block} is free and cannot be shared")
        self._counts[block] += 1

    def release(self, block: int) -> None:
        """Drop a reference; the last one frees the block."""
        if self._counts[block] == 0:
            raise EngineError(f"block {block} was released twice")
        self._counts[block] -= 1
        if self._counts[block] == 0:
            self._free.append(block)

    def check_integrity(self, holders: dict[int, int]) -> None:
        """Assert that counts equal the references that `holders` (block -> references) names, and nothing is lost."""
        assert len(set(self._free)) == len(self._free), "a block is in the free list twice"
        free = set(self._free)
        for block, count in enumerate(self._counts):
            assert count == holders.get(block, 0), f"block {block}: count {count}, held {holders.get(block, 0)}"
            assert (count == 0) == (block in free), f"block {block}: count {count}, free {block in free}"
