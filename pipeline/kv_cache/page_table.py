"""The blocks of one running call, in token order."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class PageTable:
    """Where the KV of each token of a call lives.

    Attributes:
        tokens_per_block: tokens of one block.
        blocks: block numbers; token t lives in blocks[t // tokens_per_block].
        length: tokens whose KV is computed; the next token is written at this position.
        reused_tokens: of those, how many came from the prefix index.
        reused_blocks: blocks taken over or copied from the prefix index.
        new_blocks: blocks allocated for this call.
    """

    tokens_per_block: int
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    reused_tokens: int = 0
    reused_blocks: int = 0
    new_blocks: int = 0

    @property
    def capacity(self) -> int:
        """Tokens that fit the blocks."""
        return len(self.blocks) * self.tokens_per_block

    def slots(self, start: int, count: int) -> list[int]:
        """Pool slots of `count` tokens from position `start`."""
        size = self.tokens_per_block
        return [self.blocks[t // size] * size + t % size for t in range(start, start + count)]

    def first_slot_if_contiguous(self, tokens: int) -> int | None:
        """First slot, if the blocks of the first `tokens` tokens lie side by side in the pool; else None."""
        needed = -(-tokens // self.tokens_per_block)
        first = self.blocks[0]
        # Equal ends and ascending steps of one: compare the slice with a range.
        if self.blocks[:needed] == list(range(first, first + needed)):
            return first * self.tokens_per_block
        return None
