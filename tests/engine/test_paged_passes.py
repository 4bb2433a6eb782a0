"""Buckets, padding and replays: what a CUDA graph would do, done on a CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_models import BLOCK, VOCAB, AwayDecoder, TinyModel, assert_close, compute, make_decoder

from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.paged import buckets
from pipeline.engine.paged.buckets import MOST_TOKENS, TOKEN_SIZES, Bucket, Buckets, fit_tokens
from pipeline.engine.paged.decoder import PagedDecoder
from pipeline.engine.paged.inputs import PassInputs, pack_inputs
from pipeline.engine.paged.runner import PassRunner
from pipeline.kv_cache.page_table import PageTable

TOKENS = torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(7)).tolist()


class Recorder(PassRunner):
    """Runs the first work of each bucket, and remembers the buckets."""

    def __init__(self) -> None:
        self.ran: list[Bucket] = []
        self.work: dict[Bucket, Callable[[], None]] = {}

    def run(self, bucket: Bucket, work: Callable[[], None]) -> None:
        self.ran.append(bucket)
        self.work.setdefault(bucket, work)()


@pytest.fixture
def decoder(tiny: TinyModel) -> PagedDecoder:
    made = make_decoder(tiny.folder, kind="paged")
    assert isinstance(made, PagedDecoder)
    made._runner = Recorder()
    return made


def ran(decoder: PagedDecoder) -> list[Bucket]:
    assert isinstance(decoder._runner, Recorder)
    return decoder._runner.ran


def row(text: list[int], start: int, blocks: list[int], logits: int | None = None) -> Row:
    new = tuple(text[start:])
    return Row(new, start, PageTable(BLOCK, blocks), len(new) if logits is None else logits)


def test_a_bucket_holds_what_it_is_for() -> None:
    """Every need fits its bucket, which is the same for needs nearby; decoding has buckets of its own."""
    chooser = Buckets(8, lambda blocks: blocks)
    for rows in range(1, MOST_TOKENS + 1):
        decoding = chooser.fit(Bucket(rows, rows, 1, 3, rows))
        assert decoding is not None and decoding.widest == 1 and decoding.rows == decoding.tokens >= rows
        assert decoding.wanted == decoding.tokens and decoding.tokens in TOKEN_SIZES
    for widest in range(2, 17):
        for rows in range(1, 9):
            found = chooser.fit(Bucket(rows, rows * widest, widest, 3, rows))
            assert found is not None and found.tokens >= rows * widest and found.rows >= rows
            assert widest <= found.widest <= found.tokens
    assert fit_tokens(1) == 1 and fit_tokens(9) == 16


def test_what_runs_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefills, passes without logits, large ones; and new sizes, once there are too many."""
    chooser = Buckets(4, lambda blocks: blocks)
    assert chooser.fit(Bucket(1, 17, 17, 3, 1)) is None and chooser.fit(Bucket(1, 16, 16, 3, 1)) is not None
    assert chooser.fit(Bucket(1, 4, 4, 3, 0)) is None
    assert chooser.fit(Bucket(MOST_TOKENS + 1, MOST_TOKENS + 1, 1, 3, 1)) is None
    assert Buckets(40, lambda blocks: blocks).fit(Bucket(1, 40, 40, 3, 1)) is not None
    monkeypatch.setattr(buckets, "MAX_BUCKETS", 2)
    assert chooser.fit(Bucket(1, 1, 1, 3, 1)) is not None
    assert chooser.fit(Bucket(2, 2, 1, 3, 2)) is None and chooser.fit(Bucket(1, 1, 1, 3, 1)) is not None


def test_padding_belongs_to_nobody() -> None:
    """Padding tokens go to the scratch block and to no row; padding rows have no tokens."""
    batch = PackedBatch((row([5, 6, 7, 8, 9], 3, [4, 2], 1), row([3], 0, [6])))
    bucket = Bucket(rows=4, tokens=8, widest=4, blocks=3, wanted=8)
    inputs = PassInputs(bucket, torch.from_numpy(pack_inputs(batch, bucket, BLOCK, 99)))
    views = {name: view.tolist() for name, view in inputs.views().items()}
    assert views["ids"] == [8, 9, 3, 0, 0, 0, 0, 0] and views["positions"] == [3, 4, 0, 0, 0, 0, 0, 0]
    assert views["slots"] == [4 * BLOCK + 3, 2 * BLOCK, 6 * BLOCK, *[99 * BLOCK] * 5]
    assert views["first"] == [0, 2, 3, 3, 3] and views["ends"] == [5, 1, 0, 0] and views["end_sums"] == [0, 5, 6, 6, 6]
    assert views["table"] == [[4, 2, 99], [6, 99, 99], [99] * 3, [99] * 3]
    assert views["wanted"] == [1, 2, 0, 0, 0, 0, 0, 0]
    assert views["take"][:2] == [[0, 1, 0, 0], [2, 0, 0, 0]] and views["place"][:3] == [0, 1, 4]


def test_padded_passes_leave_other_blocks_alone(decoder: PagedDecoder, tiny: TinyModel) -> None:
    """A padded pass writes its own tokens' KV and the scratch block, nothing else."""
    compute(decoder, PageTable(BLOCK, [0, 1, 2, 3]), TOKENS[:13])
    before = decoder.keys.clone(), decoder.values.clone()
    batch = PackedBatch((row(TOKENS[:16], 13, [0, 1, 2, 3]), row(TOKENS[:2], 0, [8]), row(TOKENS[:1], 0, [9])))
    decoder.forward(batch)
    assert ran(decoder)[-1] == Bucket(4, 8, 4, 4, 8)
    written = {(3, 1), (3, 2), (3, 3), (8, 0), (8, 1), (9, 0)}
    for pool, old in zip((decoder.keys, decoder.values), before, strict=True):
        changed = (pool != old).any(-1).any(-1).any(0).nonzero().tolist()
        assert {tuple(place) for place in changed} - {(decoder._scratch, 0)} == written


def test_replays_of_one_bucket_do_not_remember(decoder: PagedDecoder, tiny: TinyModel) -> None:
    """Batches of one bucket, fewer and more rows, other texts and pages: each gets its own logits, from the work that
    was given first."""
    texts = [TOKENS[i : i + 12 + i % 3] for i in range(4)]
    pages = [[i * 4 + j for j in (3, 1, 0, 2)] for i in range(4)]
    for text, page in zip(texts, pages, strict=True):
        compute(decoder, PageTable(BLOCK, page), text[:-1], logits=0)
    for chosen in ((0, 1, 2, 3), (2,), (3, 1, 0), (1, 0, 3, 2), (0, 3, 2)):
        rows = tuple(row(texts[i], len(texts[i]) - 1, pages[i]) for i in chosen)
        logits = decoder.forward(PackedBatch(rows))
        assert_close(logits, torch.cat([tiny.logits(texts[i])[-1:] for i in chosen]))
        best = decoder.best()
        assert best.places == logits.argmax(-1).tolist() and all(best.finite)
    assert len(set(ran(decoder))) == 2 and len(ran(decoder)) == 5  # one row, and up to four


def test_a_row_that_is_not_finite_is_told_from_its_neighbours(decoder: PagedDecoder) -> None:
    """Numbers that are none stay in their row, and `best` says so."""
    compute(decoder, PageTable(BLOCK, [0, 1]), TOKENS[:7])
    compute(decoder, PageTable(BLOCK, [2, 3]), TOKENS[:7])
    with torch.inference_mode():
        decoder.values[:, 2] = torch.nan
    for kind in (Recorder(), None):
        decoder._runner = kind
        decoder.forward(PackedBatch((row(TOKENS[:8], 7, [0, 1]), row(TOKENS[:8], 7, [2, 3]))))
        assert decoder.best().finite == [True, False]


@pytest.mark.parametrize("kind", ["paged", "paged-away"])
def test_preparing_covers_what_every_deployment_does(tiny: TinyModel, kind: str) -> None:
    """Decoding of up to max_requests rows and a lone verify; no block that can be handed out is written."""
    decoder = make_decoder(tiny.folder, kind=kind)
    assert isinstance(decoder, PagedDecoder)
    recorder = decoder._runner = Recorder()
    decoder.prepare()
    assert {(b.rows, b.tokens, b.widest) for b in recorder.ran} == {
        *((size, size, 1) for size in (1, 2, 4, 8)),
        *((1, fit_tokens(k + 1), min(fit_tokens(k + 1), 1 << k.bit_length())) for k in range(1, 7)),
    }
    with decoder.thread_context():
        assert not decoder.keys[:, : decoder.limits.kv_blocks].cpu().any()
    assert isinstance(decoder, AwayDecoder) == (kind == "paged-away")


def test_a_graph_without_memory(decoder: PagedDecoder) -> None:
    """Its pass runs without a graph, and its size is not tried again."""

    class Full(PassRunner):
        tried = 0

        def run(self, bucket: Bucket, work: Callable[[], None]) -> None:
            self.tried += 1
            raise torch.OutOfMemoryError("no room for a graph")

    batch = PackedBatch((row(TOKENS[:5], 0, [0, 1]),))
    expected = decoder.forward(batch).clone()
    decoder._runner = full = Full()
    for _ in range(3):
        assert_close(decoder.forward(batch), expected)
    assert full.tried == 1
