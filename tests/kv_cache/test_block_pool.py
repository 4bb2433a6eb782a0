"""BlockPool: counts, the free list, and faults of its callers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import EngineError
from pipeline.kv_cache.block_pool import BlockPool


def test_lone_sequence_gets_neighbouring_blocks() -> None:
    """A fresh pool hands out 0, 1, 2 ..., so that a lone sequence can be attended to as one run."""
    pool = BlockPool(4, 2)
    blocks = [pool.allocate()]
    while pool.free_blocks:
        blocks.append(pool.allocate(after=blocks[-1]))
    assert blocks == [0, 1, 2, 3]


def test_neighbour_is_preferred_only_while_free() -> None:
    """`after` picks the next block where it is free, any free block where it is not, and never runs off the end."""
    pool = BlockPool(3, 2)
    first = pool.allocate()
    assert pool.allocate(after=first + 1) == 2
    assert pool.allocate(after=first) == 1
    pool.release(first)
    assert pool.allocate(after=2) == first


def test_block_is_free_after_its_last_release() -> None:
    """A shared block stays held until everyone has let go."""
    pool = BlockPool(1, 2)
    block = pool.allocate()
    pool.retain(block)
    pool.release(block)
    assert pool.free_blocks == 0 and pool.count(block) == 1
    pool.release(block)
    assert pool.free_blocks == 1 and pool.count(block) == 0


def test_faults_of_the_caller_are_named() -> None:
    """Double release, sharing a free block, an empty pool and an impossible size are errors, not silence."""
    pool = BlockPool(1, 2)
    with pytest.raises(EngineError, match="block 0 is free"):
        pool.retain(0)
    with pytest.raises(EngineError, match="block 0 was released twice"):
        pool.release(0)
    pool.allocate()
    with pytest.raises(EngineError, match="all 1 blocks are held"):
        pool.allocate()
    for blocks, size in ((0, 2), (2, 0)):
        with pytest.raises(EngineError, match="cannot hold anything"):
            BlockPool(blocks, size)


def test_integrity_check_sees_lost_and_doubly_held_blocks() -> None:
    """The check itself can fail: a lost reference, a surplus one, a held block in the free list."""
    pool = BlockPool(2, 2)
    block = pool.allocate()
    pool.check_integrity({block: 1})
    for holders in ({}, {block: 2}, {block: 1, 1: 1}):
        with pytest.raises(AssertionError):
            pool.check_integrity(holders)
    pool._free.append(block)
    with pytest.raises(AssertionError):
        pool.check_integrity({block: 1})


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["allocate", "retain", "release"]), st.integers(0, 5)), max_size=40))
def test_counts_follow_a_plain_dictionary(operations: list[tuple[str, int]]) -> None:
    """Any order of operations leaves exactly the references that a dictionary would count."""
    pool, held = BlockPool(5, 2), {}
    for name, number in operations:
        if name == "allocate" and pool.free_blocks:
            block = pool.allocate(after=number if number < 5 else None)
            assert block not in held
            held[block] = 1
        elif held and name != "allocate":
            block = sorted(held)[number % len(held)]
            getattr(pool, name)(block)
            held[block] += 1 if name == "retain" else -1
            if not held[block]:
                del held[block]
        pool.check_integrity(held)
        assert pool.free_blocks == 5 - len(held)
