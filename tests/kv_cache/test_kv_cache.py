"""KvCache call by call: takeover, copy on write, rollback, pressure."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipeline.kv_cache.cache import KvCache
from pipeline.kv_cache.page_table import PageTable

SIZE = 4


class Copies(list[tuple[int, int, int]]):
    """Records what was copied."""

    def __call__(self, source: int, destination: int, tokens: int) -> None:
        self.append((source, destination, tokens))


@pytest.fixture
def copies() -> Copies:
    return Copies()


def run(kv: KvCache, tokens: Sequence[int], computed: int, kept: int, spare: int = 0) -> PageTable:
    """A whole call: returns its table as it was just before the end."""
    table = kv.open(tokens[: computed - spare], computed)
    assert table is not None
    seen = PageTable(SIZE, list(table.blocks), table.length, table.reused_tokens, table.reused_blocks, table.new_blocks)
    table.length = computed
    kv.close(table, tokens[:kept])
    kv.check_integrity()
    return seen


def test_rejected_tokens_are_not_indexed(copies: Copies) -> None:
    """Rollback: what a call computed beyond the kept tokens gives its blocks back and is never found."""
    kv = KvCache(8, SIZE, copies)
    run(kv, list(range(14)), computed=14, kept=6)
    assert kv.pool.free_blocks == 6
    assert kv.used_blocks == 0
    table = kv.open(list(range(14)), 14)
    assert table is not None and table.length == 6
    assert kv.used_blocks == len(table.blocks) == 4


def test_last_token_is_always_computed(copies: Copies) -> None:
    """The same text again leaves one token to compute, whose logits are wanted."""
    kv = KvCache(8, SIZE, copies)
    run(kv, list(range(8)), computed=8, kept=8)
    table = kv.open(list(range(8)), 8)
    assert table is not None and table.length == 7


def test_idle_tail_is_taken_over_without_a_copy(copies: Copies) -> None:
    """The next call of a sequence writes on in its own last block."""
    kv = KvCache(8, SIZE, copies)
    first = run(kv, list(range(9)), computed=9, kept=6)
    second = run(kv, list(range(9)), computed=9, kept=8)
    assert second.blocks[:2] == first.blocks[:2] and not copies
    assert (second.length, second.reused_blocks, second.new_blocks) == (6, 2, 1)


def test_tail_of_a_running_call_is_copied(copies: Copies) -> None:
    """Two calls on one prefix: the second never gets the block that the first writes to."""
    kv = KvCache(8, SIZE, copies)
    run(kv, [1, 2, 3, 4, 5, 6], computed=6, kept=6)
    first = kv.open([1, 2, 3, 4, 5, 6, 7], 8)
    second = kv.open([1, 2, 3, 4, 5, 6, 8], 8)
    kv.check_integrity()
    assert first is not None and second is not None
    assert first.length == 6 and second.length == 4  # the tail is with the first until it ends
    assert first.blocks[0] == second.blocks[0] and first.blocks[1] != second.blocks[1]


@pytest.mark.parametrize(("loss", "copied"), [(0, True), (1, False), (SIZE, False)])
def test_takeover_costs_at_most_the_loss(copies: Copies, loss: int, copied: bool) -> None:
    """A tail with one token too many is copied by a target and taken over by a draft."""
    kv = KvCache(8, SIZE, copies, takeover_loss=loss)
    run(kv, [1, 2, 3, 4, 5, 6, 7], computed=7, kept=7)
    table = kv.open([1, 2, 3, 4, 5, 6, 9], 8)
    assert table is not None and table.length == 6 and bool(copies) == copied
    assert table.reused_blocks == 2 and table.new_blocks == (1 if copied else 0)
    if copied:
        assert copies == [(1, table.blocks[1], 2)]
    kv.check_integrity()


def test_full_pool_refuses_and_leaks_nothing(copies: Copies) -> None:
    """None while others hold the blocks, the same request fits once they are gone."""
    kv = KvCache(3, SIZE, copies)
    run(kv, [1, 2, 3, 4, 5], computed=5, kept=5)
    first = kv.open([1, 2, 3, 4, 5, 6], 8)
    assert first is not None
    for capacity in (10, 12, 400):
        assert kv.open([1, 2, 3, 4, 9, 9], capacity) is None
        assert kv.open([7, 8], capacity) is None
        kv.check_integrity()
    kv.close(first, [])
    assert kv.open([7, 8], 13) is None
    assert kv.open([7, 8], 12) is not None
    kv.check_integrity()


@pytest.mark.parametrize("indexed", [[1, 2, 3, 4], [1, 2]])
@pytest.mark.parametrize("loss", [0, SIZE])
def test_whole_pool_is_available_to_a_lone_call(copies: Copies, indexed: list[int], loss: int) -> None:
    """A call that needs every block gets them, although the index holds a block that it could copy from."""
    kv = KvCache(3, SIZE, copies, takeover_loss=loss)
    run(kv, indexed, computed=len(indexed), kept=len(indexed))
    run(kv, [8, 8, 8, 8, 8], computed=5, kept=5)
    table = kv.open([1, 2, 9, 9, 9, 9], 12)
    assert table is not None and len(table.blocks) == 3
    kv.check_integrity()


def test_available_blocks_counts_what_eviction_frees(copies: Copies) -> None:
    """Free blocks and idle indexed ones are available, blocks of running calls are not."""
    kv = KvCache(4, SIZE, copies)
    run(kv, list(range(8)), computed=8, kept=8)
    assert kv.available_blocks == 4
    table = kv.open(list(range(9)), 9)
    assert table is not None and kv.available_blocks == 1


def test_more_tokens_than_computed_are_refused(copies: Copies) -> None:
    """Indexing what was never computed would hand garbage to a later call."""
    kv = KvCache(4, SIZE, copies)
    table = kv.open([1, 2, 3], 4)
    assert table is not None
    with pytest.raises(AssertionError, match="3 tokens to index, 0 computed"):
        kv.close(table, [1, 2, 3])
