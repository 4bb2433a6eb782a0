"""PageTable: from positions to slots."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kv_cache.page_table import PageTable


def test_slots_follow_the_blocks() -> None:
    """Positions across fragmented blocks map block by block."""
    table = PageTable(4, [5, 2, 7])
    assert table.capacity == 12
    assert table.slots(0, 2) == [20, 21]
    assert table.slots(3, 6) == [23, 8, 9, 10, 11, 28]
    assert table.slots(5, 0) == []


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.permutations(range(5)), st.integers(1, 4), st.data())
def test_contiguous_exactly_where_slots_are_one_run(blocks: list[int], size: int, data: st.DataObject) -> None:
    """The short cut of attention is taken if and only if the slots of the first tokens are one run."""
    table = PageTable(size, blocks[:4])
    tokens = data.draw(st.integers(1, table.capacity))
    whole = table.slots(0, -(-tokens // size) * size)
    run = whole == list(range(whole[0], whole[0] + len(whole)))
    assert table.first_slot_if_contiguous(tokens) == (whole[0] if run else None)


def test_equal_ends_do_not_make_a_run() -> None:
    """Blocks 0, 5, 2 end where a run of three would, and are none."""
    assert PageTable(4, [0, 5, 2]).first_slot_if_contiguous(12) is None
    assert PageTable(4, [0, 5, 2]).first_slot_if_contiguous(4) == 0
