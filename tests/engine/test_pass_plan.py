"""What a pass is made of: every kind of row, no padding, a budget, and a share for who came first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hand_stepped import Engine
from tiny_models import BLOCK, LIMITS, VOCAB, TinyModel, make_decoder, watch

from pipeline.engine.pass_plan import OLDEST_SHARE
from pipeline.errors import InvalidRequestError
from pipeline.sampling.params import SamplingParams

PROMPT = (57, 82, 25, 87, 55, 60, 59)
BUDGET = 16


@pytest.fixture
def engine(tiny: TinyModel) -> Iterator[Engine]:
    engine = Engine(tiny, budget=BUDGET)
    yield engine
    engine.scheduler.close()


def test_chunk_verify_and_decode_share_a_pass(engine: Engine, tiny: TinyModel) -> None:
    """Each token once, logits only where something is decided: nothing is padded."""
    text = tiny.greedy(PROMPT, 8)
    engine.run(engine.add(PROMPT, 3))
    decode = engine.call((9, 9, 9), 6)
    engine.step()
    verify = engine.call((*PROMPT, *text[:3]), 4, draft_ids=text[3:6])
    prefill = engine.call(tuple(range(3, 43)), 2)
    engine.step()
    batch = engine.batches[-1]
    found = sorted((len(row.tokens), row.start, row.logits) for row in batch.rows)
    chunk = BUDGET - 1 - 4
    assert found == [(1, 3, 1), (4, len(PROMPT) + 2, 4), (chunk, 0, 0)]
    assert batch.num_tokens == BUDGET and verify.future.result(0).output_ids == text[3:7]
    for call in (decode, prefill):
        engine.run(call.future)


def test_a_long_prompt_delays_a_decode_by_a_chunk(engine: Engine) -> None:
    """While it comes in, everybody who decodes has a row in every pass, and no pass is larger than the budget."""
    decodes = [engine.call((9, 9, i), 30) for i in range(3)]
    engine.step()
    prefill = engine.call(tuple(i % VOCAB for i in range(70)), 2)
    first = len(engine.batches)
    while not prefill.output:
        before = [len(call.output) for call in decodes]
        engine.step()
        assert [len(call.output) for call in decodes] == [n + 1 for n in before]
        assert engine.batches[-1].num_tokens <= BUDGET
    assert len(engine.batches) - first == -(-70 // (BUDGET - 3))
    for call in (*decodes, prefill):
        engine.run(call.future)


def test_short_requests_cannot_keep_an_old_one_from_its_passes(tiny: TinyModel) -> None:
    """A stream of younger prompts that fill every pass: the old one gets its share of each and ends in time."""
    engine = Engine(tiny, budget=BUDGET)
    old = engine.call(tuple(i % VOCAB for i in range(60)), 2, arrival=0)
    passes = 0
    while not old.future.done():
        for i in range(4):
            engine.call((i, passes % VOCAB, 1, 2, 3, 4, 5), 1, arrival=1)
        engine.step()
        passes += 1
        assert passes <= 60 // (BUDGET // OLDEST_SHARE) + 2, "starved"
    while engine.scheduler.busy:
        engine.step()
    engine.scheduler.close()


def test_a_draft_steps_for_all_together(engine: Engine) -> None:
    """K steps for everybody who waits are K passes, whatever their K."""
    calls = [engine.call((9, i, 4), k) for i, k in enumerate((4, 2, 4, 3))]
    while engine.scheduler.busy:
        engine.step()
    assert all(call.future.done() for call in calls)
    assert [len(batch.rows) for batch in engine.batches] == [4, 4, 3, 2]
    assert [batch.num_tokens for batch in engine.batches] == [12, 4, 3, 2]


@pytest.mark.parametrize("drafts", [0, 5])
def test_a_call_may_fill_the_context(tiny: TinyModel, drafts: int) -> None:
    """Prompt and output are the engine's limit, the pool holds no more; one token above is refused."""
    size = 40
    limits = LIMITS.model_copy(update={"max_seq_len": size, "kv_blocks": size // BLOCK})
    watched = watch(make_decoder(tiny.folder, blocks=size // BLOCK), limits)
    text = tiny.greedy(PROMPT, size - len(PROMPT))
    assert watched.call(PROMPT, len(text)).output_ids == text
    if drafts:
        start = (*PROMPT, *text[: len(text) - drafts - 1])
        assert watched.verify(start, text[-drafts - 1 : -1]).output_ids == text[-drafts - 1 :]
        with pytest.raises(InvalidRequestError, match="40 tokens"):
            watched.verify((*start, text[-1]), text[-drafts - 1 : -1])
    sampled = watched.call((*PROMPT, *text[:-1]), 1, sampling=SamplingParams(0.9), seed=3)
    assert len(sampled.output_ids) == 1
    with pytest.raises(InvalidRequestError, match="40 tokens"):
        watched.call(PROMPT, len(text) + 1)
    watched.model.close()
    watched.check_idle()
