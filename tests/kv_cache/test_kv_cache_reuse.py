"""Rounds of several interleaved sequences: how much of the last round the next one reuses."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kv_cache.cache import KvCache
from pipeline.kv_cache.page_table import PageTable

SIZE = 4
SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
# (sequence, K, accepted): in what order calls start; each ends when its sequence starts the next one.
ROUNDS = st.lists(
    st.integers(0, 6).flatmap(lambda k: st.tuples(st.integers(0, 2), st.just(k), st.integers(0, k))), max_size=30
)


@dataclass
class Sequence:
    """A text that grows by rounds; every token is told from those of other sequences."""

    name: int
    text: list[int]
    reusable: int = 0
    tokens: int = 0
    running: tuple[PageTable, list[int], int] | None = None
    reuses: list[tuple[int, int]] = field(default_factory=list)

    def fresh(self) -> int:
        self.tokens += 1
        return self.name * 1000 + self.tokens


def open_call(kv: KvCache, sequence: Sequence, capacity: int) -> PageTable:
    table = kv.open(sequence.text, capacity)
    assert table is not None
    kv.check_integrity()
    sequence.reuses.append((table.reused_tokens, sequence.reusable))
    return table


@SETTINGS
@given(ROUNDS)
def test_target_reuses_all_but_the_last_committed_token(rounds: list[tuple[int, int, int]]) -> None:
    """Whatever is accepted and whoever runs meanwhile, a target's next call reuses committed - 1 tokens."""
    kv = KvCache(400, SIZE, lambda *_: None)
    prompt = [7, 7, 7, 7, 7]
    sequences = [Sequence(name, [*prompt, name * 1000]) for name in range(1, 4)]

    def finish(sequence: Sequence) -> None:
        if sequence.running is not None:
            table, drafts, accepted = sequence.running
            table.length = len(sequence.text) + len(drafts)
            sequence.text += [*drafts[:accepted], sequence.fresh()]
            sequence.reusable = len(sequence.text) - 1
            kv.close(table, sequence.text[:-1])
            kv.check_integrity()
            sequence.running = None

    for number, k, accepted in rounds:
        sequence = sequences[number]
        finish(sequence)
        drafts = [sequence.fresh() for _ in range(k)]
        table = open_call(kv, sequence, len(sequence.text) + k + 1)
        assert table.new_blocks + table.reused_blocks >= len(table.blocks)
        sequence.running = (table, drafts, accepted)
    for sequence in sequences:
        # What a first call shares with the others' prompts depends on who came before it.
        assert all(reused == expected for reused, expected in sequence.reuses[1:])


@SETTINGS
@given(ROUNDS)
def test_draft_reuses_the_longest_accepted_prefix(rounds: list[tuple[int, int, int]]) -> None:
    """A draft that takes over its own tail finds all of it that was accepted, and needs few blocks."""
    kv = KvCache(400, SIZE, lambda *_: None, takeover_loss=SIZE)
    sequences = [Sequence(name, [name * 1000] * 5) for name in range(1, 4)]
    for number, k, accepted in rounds:
        sequence = sequences[number]
        k = max(k, 1)
        table = open_call(kv, sequence, len(sequence.text) + k)
        assert table.reused_tokens == sequence.reusable
        drafts = [sequence.fresh() for _ in range(k)]
        table.length = len(sequence.text) + k - 1
        kv.close(table, [*sequence.text, *drafts[:-1]])
        kv.check_integrity()
        sequence.reusable = len(sequence.text) + min(accepted, k - 1)
        sequence.text += [*drafts[:accepted], sequence.fresh()]
