"""EmbeddedStepModel when things go wrong: refusals, poisoned logits, failing passes, stop, close."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import LIMITS, VOCAB, TinyModel, Watched, make_decoder, watch
from torch import Tensor

from pipeline.engine.batch import PackedBatch
from pipeline.engine.step import StepResult
from pipeline.errors import EngineError, InvalidRequestError, StepError
from pipeline.sampling.params import SamplingParams

PROMPT = (5, 71, 13, 8, 44)
POISON = 66

REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no input": ({"tokens": ()}, "input_ids", "at least one token"),
    "negative id": ({"tokens": (5, -1)}, "input_ids", r"-1: must be a token id in \[0, 97\)"),
    "id too large": ({"tokens": (VOCAB, 5)}, "input_ids", r"97: must be a token id in \[0, 97\)"),
    "nothing new": ({"new": 0}, "request_output_len", "0: must be at least 1"),
    "negative length": ({"new": -3}, "request_output_len", "-3: must be at least 1"),
    "too long": ({"new": 92}, "input_ids", "5 tokens . 92 new.*96 tokens"),
    "too many drafts": ({"new": 8, "draft_ids": (1,) * 7}, "draft_input_ids", "7 tokens.*at most 6"),
    "length unlike K + 1": ({"new": 2, "draft_ids": (1, 2)}, "request_output_len", "2: must be 3 for 2 draft tokens"),
    "draft id": ({"new": 2, "draft_ids": (VOCAB,)}, "draft_input_ids", r"97: must be a token id in \[0, 97\)"),
    "rule": ({"rule": "typical"}, "acceptance_rule", "'typical'.*auto, block, token, match"),
    "shape of q": (
        {"new": 3, "draft_ids": (1, 2), "draft_logits": np.zeros((1, VOCAB), np.float32)},
        "draft_logits",
        r"\[1, 97\].*\[2, vocabulary of the draft\]",
    ),
    "NaN in q": (
        {"new": 2, "draft_ids": (1,), "draft_logits": np.full((1, VOCAB), np.nan, np.float32)},
        "draft_logits",
        "nan: row 0 must hold numbers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_request_is_refused_by_name(target: Watched, tiny: TinyModel, name: str) -> None:
    """The error names field, value and limit; nothing is computed, and the next request is served."""
    options, field, message = REFUSED[name]
    options = {"tokens": PROMPT, "new": 1, **options}
    future = target.model.submit(target.request(options.pop("tokens"), options.pop("new"), **options))
    with pytest.raises(InvalidRequestError, match=message) as caught:
        future.result(20)
    assert caught.value.field == field
    assert not target.passes
    assert target.call(PROMPT, 3).output_ids == tiny.greedy(PROMPT, 3)


def test_longest_request_is_served(target: Watched, tiny: TinyModel) -> None:
    """Exactly at the limit is inside it, plain and with the most drafts."""
    text = tiny.greedy(PROMPT, 91)
    assert target.call(PROMPT, 91).output_ids == text
    committed = [*PROMPT, *text[:84]]
    assert target.verify(committed, text[84:90]).output_ids == text[84:91]


def test_pool_that_cannot_hold_one_request_is_refused(tiny: TinyModel) -> None:
    """Sizes under which a request could wait for ever are no engine."""
    with pytest.raises(EngineError, match=r"92 tokens.*max_seq_len = 96"):
        watch(make_decoder(tiny.folder, blocks=23), LIMITS.model_copy(update={"kv_blocks": 23}))


def poison(batch: PackedBatch, logits: Tensor) -> None:
    """NaN in the last logits of rows that compute the token POISON."""
    first = 0
    for row in batch.rows:
        if POISON in row.tokens and row.logits:
            logits[first + row.logits - 1, 3] = torch.nan
        first += row.logits


@pytest.mark.parametrize("drafts", [(), (1, 2, 3)])
def test_logits_that_are_not_finite_end_one_request(target: Watched, tiny: TinyModel, drafts: tuple[int, ...]) -> None:
    """The poisoned request fails, its neighbours of the same pass do not notice, and its blocks come back."""
    target.spoil = poison
    with target.held():
        good = [target.model.submit(target.request(PROMPT, 6))]
        bad = target.model.submit(target.request([POISON, 4], len(drafts) + 1, draft_ids=drafts))
        good.append(target.model.submit(target.request(PROMPT, 4, draft_ids=(1, 2, 3), sampling=SamplingParams(0.5))))
    with pytest.raises(StepError, match="not finite"):
        bad.result(20)
    assert good[0].result(20).output_ids == tiny.greedy(PROMPT, 6)
    assert good[1].result(20).output_ids
    assert len(target.passes[0].rows) == 3
    target.check_idle()
    assert target.call([9, 4], 2).output_ids == tiny.greedy([9, 4], 2)


def test_a_draft_ends_before_a_law_that_is_none(target: Watched) -> None:
    """What it drew before is proposed, with its laws: to fail would withhold tokens for what they led to."""
    options = {"sampling": SamplingParams(1.0), "seed": 5, "return_logits": True}
    whole = target.call(PROMPT, 4, **options)

    def late(batch: PackedBatch, logits: Tensor) -> None:
        if batch.rows[0].start == len(PROMPT) + 1:
            logits[0, 3] = torch.nan

    target.spoil = late
    found = target.call(PROMPT, 4, **options)
    assert found.output_ids == whole.output_ids[:2] and len(whole.output_ids) == 4
    assert found.generation_logits is not None and found.generation_logits.shape == (2, VOCAB)
    target.check_idle()


def test_failing_pass_ends_its_calls_and_the_engine_goes_on(target: Watched, tiny: TinyModel) -> None:
    """Everyone in the pass gets a StepError, all blocks come back, and the next call is right."""

    def explode(batch: PackedBatch, logits: Tensor) -> None:
        if any(POISON in row.tokens for row in batch.rows):
            raise RuntimeError("planted")

    target.call(PROMPT, 4)
    target.spoil = explode
    with target.held():
        futures = [target.model.submit(target.request(tokens, 4)) for tokens in (PROMPT, [POISON, 1])]
    for future in futures:
        with pytest.raises(StepError, match="engine pass failed: RuntimeError: planted"):
            future.result(20)
    target.check_idle()
    assert target.call(PROMPT, 4).output_ids == tiny.greedy(PROMPT, 4)


def test_withdrawn_future_harms_nobody(target: Watched, tiny: TinyModel) -> None:
    """A caller that cancels its future does not bring down the calls that share its pass."""
    with target.held():
        withdrawn = target.model.submit(target.request([8, 8], 1))
        assert not withdrawn.cancel()
        kept = target.model.submit(target.request(PROMPT, 3))
    assert kept.result(20).output_ids == tiny.greedy(PROMPT, 3)


def test_stop_ends_a_running_burst_early(target: Watched, tiny: TinyModel) -> None:
    """A call that is stopped in its first pass takes part in no other and returns what it has."""
    target.spoil = lambda batch, logits: target.model.stop("long")
    result = target.call(PROMPT, 60, request_id="long")
    assert result.output_ids == tiny.greedy(PROMPT, 1)
    target.model.stop("nobody")
    assert target.call(PROMPT, 4).output_ids == tiny.greedy(PROMPT, 4)


def test_stop_ends_a_long_prefill(target: Watched, tiny: TinyModel) -> None:
    """A prompt in chunks is left before the next one, with nothing committed and its computed part reusable."""
    prompt = [int(token) for token in range(3, 43)]
    target.model._scheduler._max_batch_tokens = 8
    target.spoil = lambda batch, logits: target.model.stop("long")
    result = target.call(prompt, 4, request_id="long")
    assert result.output_ids == () and result.kv.computed_tokens == 8
    again = target.call(prompt, 4)
    assert again.kv.reused_tokens == 8 and again.output_ids == tiny.greedy(prompt, 4)


def test_stop_of_a_waiting_call(target: Watched, tiny: TinyModel) -> None:
    """A call that is stopped before it began is an error, and those behind it go on."""
    with target.held():
        waiting = target.model.submit(target.request(PROMPT, 60, request_id="waiting"))
        behind = target.model.submit(target.request(PROMPT, 3))
        target.model.stop("waiting")
    with pytest.raises(StepError, match="call waiting was stopped"):
        waiting.result(20)
    assert behind.result(20).output_ids == tiny.greedy(PROMPT, 3)


def test_close_answers_everyone(tiny: TinyModel) -> None:
    """Running, waiting and unseen calls end with a StepError when the engine is closed, and later ones at once."""
    limits = LIMITS.model_copy(update={"max_requests": 1})
    watched = watch(make_decoder(tiny.folder, blocks=48), limits)
    watched.free.clear()
    futures: list[Future[StepResult]] = [watched.model.submit(watched.request(PROMPT, 60)) for _ in range(3)]
    assert watched.entered.wait(20)
    closing = threading.Thread(target=watched.model.close)
    closing.start()
    while not watched.model._closed:
        closing.join(0.001)
    futures.append(watched.model.submit(watched.request(PROMPT, 1)))
    watched.free.set()
    closing.join(20)
    assert not closing.is_alive()
    for future in futures:
        with pytest.raises(StepError, match="closed"):
            future.result(0)
    watched.model.stop("call-1")
    watched.model.close()
    watched.check_idle()
