"""PrefixIndex: what is found, what is shared, what is evicted first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipeline.kv_cache.block_pool import BlockPool
from pipeline.kv_cache.prefix_index import PrefixIndex

SIZE = 3


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(12, SIZE)


@pytest.fixture
def index(pool: BlockPool) -> PrefixIndex:
    return PrefixIndex(pool)


def add(index: PrefixIndex, pool: BlockPool, tokens: Sequence[int]) -> list[int]:
    """Index a text as a finished call does: in blocks of its own, which it lets go of."""
    blocks = [pool.allocate() for _ in range(-(-len(tokens) // SIZE))]
    index.insert(tokens, blocks)
    for block in blocks:
        pool.release(block)
    index.check_integrity()
    return blocks


def found(index: PrefixIndex, tokens: Sequence[int]) -> tuple[list[int], int]:
    """Blocks that begin a text, and how many tokens they cover."""
    match = index.match(tokens)
    blocks = [node.block for node in match.full]
    if match.partial is not None:
        blocks.append(match.partial.block)
    return blocks, len(match.full) * SIZE + match.partial_tokens


def test_longest_prefix_is_found(index: PrefixIndex, pool: BlockPool) -> None:
    """Whole blocks, then the block that shares most of the rest, also in the middle of a full block."""
    blocks = add(index, pool, [1, 2, 3, 4, 5, 6, 7])
    assert found(index, [1, 2, 3, 4, 5, 6, 7, 8]) == (blocks, 7)
    assert found(index, [1, 2, 3, 4, 5, 9]) == (blocks[:2], 5)
    assert found(index, [1, 2, 3]) == (blocks[:1], 3)
    assert found(index, [1, 9]) == (blocks[:1], 1)
    assert found(index, [2, 2, 3]) == ([], 0)
    assert found(index, []) == ([], 0)


def test_best_of_several_continuations_wins(index: PrefixIndex, pool: BlockPool) -> None:
    """Among blocks that begin alike, the longest common prefix is taken."""
    add(index, pool, [1, 2, 3])
    (best,) = add(index, pool, [1, 5, 6])
    assert found(index, [1, 5, 9]) == ([best], 2)


def test_indexed_text_keeps_its_block(index: PrefixIndex, pool: BlockPool) -> None:
    """A second computation of the same text adds nothing and frees its own blocks."""
    first = add(index, pool, [1, 2, 3, 4])
    add(index, pool, [1, 2, 3, 4])
    assert found(index, [1, 2, 3, 4]) == (first, 4)
    assert pool.free_blocks == 10


def test_longer_text_replaces_an_idle_partial_block(index: PrefixIndex, pool: BlockPool) -> None:
    """One sequence that grows holds one tail block, not one per round; a longer tail covers a shorter one."""
    for end in range(1, 6):
        add(index, pool, [1, 2, 3, 4, 5][:end])
    assert len(index) == 2
    add(index, pool, [1, 2, 3, 4])
    assert len(index) == 2
    assert found(index, [1, 2, 3, 4, 5])[1] == 5


def test_held_partial_block_is_not_dropped(index: PrefixIndex, pool: BlockPool) -> None:
    """A longer text leaves the shorter block alone while a call holds it."""
    (held,) = add(index, pool, [1, 2])
    pool.retain(held)
    add(index, pool, [1, 2, 3])
    assert pool.count(held) == 2
    assert len(index) == 2


def test_least_recently_used_leaf_goes_first(index: PrefixIndex, pool: BlockPool) -> None:
    """Looking a text up saves it; children go before their parents; held blocks stay."""
    old = add(index, pool, [1, 2, 3, 4])
    new = add(index, pool, [7, 8, 9])
    index.match([1, 2, 3, 4])
    assert index.evict(1) == 1 and pool.count(new[0]) == 0
    assert index.evict(1) == 1 and pool.count(old[1]) == 0 and pool.count(old[0]) == 1
    pool.retain(old[0])
    assert index.idle_blocks() == 0 and index.evict(5) == 0
    pool.release(old[0])
    assert index.evict(5) == 1 and len(index) == 0 and pool.free_blocks == 12


def test_taken_block_keeps_its_reference(index: PrefixIndex, pool: BlockPool) -> None:
    """`take` moves the index's reference to the caller."""
    (block,) = add(index, pool, [1, 2])
    node = index.match([1, 2]).partial
    assert node is not None and index.is_idle_leaf(node)
    assert index.take(node) == block and pool.count(block) == 1 and len(index) == 0


def test_a_block_with_a_continuation_is_no_idle_leaf(index: PrefixIndex, pool: BlockPool) -> None:
    """Blocks that others build on cannot be taken over."""
    add(index, pool, [1, 2, 3, 4])
    partial = index.match([1, 2]).partial
    assert partial is not None and not index.is_idle_leaf(partial)


def test_integrity_check_sees_wrong_order(index: PrefixIndex, pool: BlockPool) -> None:
    """The check itself can fail: a parent that would be evicted before its child."""
    add(index, pool, [1, 2, 3, 4])
    index._recency.move_to_end(next(iter(index._recency)))
    with pytest.raises(AssertionError, match="evicted before"):
        index.check_integrity()
