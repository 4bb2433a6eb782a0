"""EmbeddedStepModel, greedy: plain decoding, verifies, EOS, rollback, sharing of passes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import BLOCK, LIMITS, VOCAB, TinyModel, Watched, make_decoder, watch

from pipeline.engine.step import StepResult

PROMPT = (57, 82, 25, 87, 55, 60, 59)
NEW = 16
SETTINGS = settings(derandomize=True, deadline=None, max_examples=30)


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> Iterator[Watched]:
    """One model for many examples: what earlier ones left in its cache must not matter."""
    watched = watch(make_decoder(tiny.folder, blocks=48))
    yield watched
    watched.model.close()


@pytest.fixture(scope="module")
def greedy(tiny: TinyModel) -> tuple[int, ...]:
    text = tiny.greedy(PROMPT, NEW + 8)
    assert len(set(text[:6])) == 6, "tokens that repeat cannot tell positions apart: choose another prompt"
    return text


def test_one_call_equals_token_by_token_and_transformers(target: Watched, greedy: tuple[int, ...]) -> None:
    """A burst, single tokens on the reused cache, and transformers' generate give one text."""
    assert target.call(PROMPT, NEW).output_ids == greedy[:NEW]
    text = list(PROMPT)
    for _ in range(NEW):
        text += target.call(text, 1).output_ids
    assert tuple(text[len(PROMPT) :]) == greedy[:NEW]
    blocks = target.model.kv_blocks()
    assert (blocks.used, blocks.free + blocks.cached) == (0, 48) and blocks.cached >= len(text) // BLOCK


@SETTINGS
@given(st.data())
def test_any_drafts_give_the_greedy_text(model: Watched, greedy: tuple[int, ...], data: st.DataObject) -> None:
    """Rounds with right, partly right or random drafts, with or without a q, commit plain decoding's tokens."""
    text: list[int] = []
    while len(text) < NEW:
        k = data.draw(st.integers(0, LIMITS.max_draft_len))
        right = data.draw(st.integers(0, k))
        drafts = [*greedy[len(text) : len(text) + right]]
        drafts += data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=k - right, max_size=k - right))
        result = model.verify([*PROMPT, *text], drafts)
        accepted = result.total_accepted_draft_tokens
        assert result.total_draft_tokens == k and right <= accepted <= k
        assert len(result.output_ids) == accepted + 1 and result.output_ids[:accepted] == tuple(drafts[:accepted])
        text += result.output_ids
        assert tuple(text) == greedy[: len(text)]
        model.check_idle()


@pytest.mark.parametrize("k", [0, 1, 4])
def test_end_token_at_every_place_of_a_block(target: Watched, greedy: tuple[int, ...], k: int) -> None:
    """EOS as accepted draft, correction or bonus ends the output before it: fewer tokens than were implied."""
    for place in range(k + 1):
        end = greedy[place]
        right = target.verify(PROMPT, greedy[:k], end_id=end)
        assert right.output_ids == greedy[:place] and right.total_accepted_draft_tokens == place
        drafts = [*greedy[:place], *[(end + 1) % VOCAB] * (k - place)]
        corrected = target.verify(PROMPT, drafts, end_id=end)
        assert corrected.output_ids == greedy[:place]
    assert target.call(PROMPT, NEW, end_id=greedy[5]).output_ids == greedy[:5]
    # A draft call sends no end token, and gets it as an ordinary one.
    assert target.call(PROMPT, 6).output_ids == greedy[:6]


def test_sequence_goes_on_after_an_end_token(target: Watched, greedy: tuple[int, ...]) -> None:
    """What an ended call left in the cache is right: going on from it gives the same text."""
    target.verify(PROMPT, greedy[:4], end_id=greedy[2])
    target.verify(PROMPT, [greedy[0], 0, 0, 0], end_id=greedy[1])
    for cut in range(5):
        assert target.call([*PROMPT, *greedy[:cut]], 4).output_ids == greedy[cut : cut + 4]


@SETTINGS
@given(st.data())
def test_rounds_compute_only_what_is_new(model: Watched, data: st.DataObject) -> None:
    """Concurrent requests with their own K: each round reuses committed - 1 tokens and computes K + 1."""
    first = data.draw(st.integers(0, VOCAB - 4))
    texts = {number: [7, 7, 7, 7, 7, first + number, data.draw(st.integers(0, VOCAB - 1))] for number in range(3)}
    for text in texts.values():  # one after the other: the prompts begin alike
        text += model.call(text, 1).output_ids
    for _ in range(3):
        ks = [data.draw(st.integers(0, 5)) for _ in texts]
        drafts = [[data.draw(st.integers(0, VOCAB - 1)) for _ in range(k)] for k in ks]
        with model.held():
            futures = [
                model.model.submit(model.request(texts[i], ks[i] + 1, draft_ids=tuple(drafts[i]))) for i in texts
            ]
        for i, future in enumerate(futures):
            result = future.result(20)
            assert result.kv.reused_tokens == len(texts[i]) - 1
            assert result.kv.computed_tokens == ks[i] + 1
            assert result.kv.reused_blocks == -(-(len(texts[i]) - 1) // BLOCK)
            total = -(-(len(texts[i]) + ks[i] + 1) // BLOCK)
            assert result.kv.alloc_total_blocks == total
            assert result.kv.reused_blocks + result.kv.alloc_new_blocks >= total
            texts[i] += result.output_ids
        assert [len(batch.rows) for batch in model.passes] == [3]
    model.check_idle()


def test_waiting_calls_share_a_pass_and_are_not_padded(target: Watched, greedy: tuple[int, ...]) -> None:
    """Calls of any kind that wait together are one pass, with each token computed once."""
    with target.held():
        burst = target.model.submit(target.request(PROMPT, 3))
        verify = target.model.submit(target.request(PROMPT, 3, draft_ids=greedy[:2]))
        plain = target.model.submit(target.request([9, 9], 1))
    assert burst.result(20).output_ids == verify.result(20).output_ids == greedy[:3]
    assert len(plain.result(20).output_ids) == 1
    sizes = [sorted(len(row.tokens) for row in batch.rows) for batch in target.passes]
    assert sizes == [[2, len(PROMPT), len(PROMPT) + 2], [1], [1]]


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("budget", [1, 5, 16])
def test_prefill_in_chunks_equals_whole_prefill(target: Watched, tiny: TinyModel, k: int, budget: int) -> None:
    """A long prompt is cut into chunks that delay nobody, drafts ride on the last one, and the text is the same."""
    prompt = [int(token) for token in range(3, 40)]
    expected = tiny.greedy(prompt, k + 1)
    target.model._scheduler._max_batch_tokens = budget
    with target.held():
        long = target.model.submit(target.request(prompt, k + 1, draft_ids=expected[:k]))
        short = target.model.submit(target.request([4], 4))
    assert long.result(20).output_ids == expected
    assert long.result().kv.computed_tokens == len(prompt) + k
    assert len(short.result(20).output_ids) == 4
    assert all(batch.num_tokens <= budget + k for batch in target.passes)
    if budget > 1:
        assert all(min(len(row.tokens) for row in batch.rows) == 1 for batch in target.passes[:4])


def test_calls_wait_for_room_in_order_of_arrival(tiny: TinyModel) -> None:
    """A pool with room for one call at a time serves all, first come first served, and evicts what is idle."""
    blocks = 6
    limits = LIMITS.model_copy(update={"kv_blocks": blocks, "max_seq_len": blocks * BLOCK})
    watched = watch(make_decoder(tiny.folder, blocks=blocks), limits)
    prompts = [[first] * 15 for first in (20, 30, 40)]
    futures: list[Future[StepResult]] = []
    order: list[Future[StepResult]] = []
    with watched.held():
        for prompt, arrival in zip(prompts, (3, 1, 2), strict=True):
            futures.append(watched.model.submit(watched.request(prompt, 9, arrival=arrival)))
            futures[-1].add_done_callback(order.append)
    for prompt, future in zip(prompts, futures, strict=True):
        assert future.result(20).output_ids == tiny.greedy(prompt, 9)
    assert order == [futures[1], futures[2], futures[0]]
    watched.model.close()
    watched.check_idle()


CALLS = st.integers(0, LIMITS.max_draft_len).flatmap(
    lambda k: st.tuples(st.integers(0, 2), st.integers(0, 16), st.just(k), st.integers(0, k), st.integers(1, 4))
)


@pytest.mark.parametrize("loss", [0, BLOCK])
def test_any_schedule_under_pressure_gives_the_greedy_text(tiny: TinyModel, loss: int) -> None:
    """Calls from anywhere in three texts, right and wrong drafts, chunks, evictions: every token is the right one."""
    limits = LIMITS.model_copy(update={"kv_blocks": 14, "max_seq_len": 14 * BLOCK, "max_requests": 2})
    watched = watch(make_decoder(tiny.folder, blocks=14), limits, loss)
    prompts = [[*PROMPT[:5], *tail] for tail in ((1,), (1, 90), (3, 4, 5))]
    texts = [tiny.greedy(prompt, 24) for prompt in prompts]

    @settings(SETTINGS, max_examples=40)
    @given(st.lists(st.lists(CALLS, min_size=1, max_size=5), min_size=1, max_size=5), st.sampled_from([3, 8, 512]))
    def right(waves: list[list[tuple[int, int, int, int, int]]], budget: int) -> None:
        watched.model._scheduler._max_batch_tokens = budget
        for wave in waves:
            with watched.held():
                futures = []
                for which, done, k, right, burst in wave:
                    text = texts[which]
                    drafts = (*text[done : done + right], *[VOCAB - 1] * (k - right))
                    request = watched.request([*prompts[which], *text[:done]], k + 1 if k else burst, draft_ids=drafts)
                    futures.append(watched.model.submit(request))
            for future, (which, done, k, right, burst) in zip(futures, wave, strict=True):
                result = future.result(20)
                assert len(result.output_ids) == (right + 1 if k else burst)
                assert result.output_ids == texts[which][done : done + len(result.output_ids)]
            assert all(len(batch.rows) <= limits.max_requests for batch in watched.passes)
            watched.check_idle()

    assert VOCAB - 1 not in [token for text in texts for token in text]
    right()
    watched.model.close()


def test_draft_engine_reuses_what_was_accepted(tiny: TinyModel) -> None:
    """A draft's next call starts after the longest accepted prefix and takes no block for what was rejected."""
    watched = watch(make_decoder(tiny.folder, blocks=48), takeover_loss=BLOCK)
    text, reusable = list(PROMPT), 0
    for accepted in (4, 0, 2, 3, 1):
        result = watched.call(text, 4)
        assert result.kv.reused_tokens == reusable
        assert result.kv.computed_tokens == len(text) + 3 - reusable
        reusable = len(text) + min(accepted, 3)
        text += [*result.output_ids[:accepted], (result.output_ids[-1] + 1 + accepted) % VOCAB]
    watched.model.close()
    watched.check_idle()
