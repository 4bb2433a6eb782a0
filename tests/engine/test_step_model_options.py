"""EmbeddedStepModel with every option: bursts, verifies and drafts see the same histories, and leave no trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import VOCAB, AwayDecoder, TinyModel, Watched, make_decoder, watch

from pipeline.engine.batch import PackedBatch
from pipeline.engine.step import StepResult
from pipeline.errors import InvalidRequestError, StepError
from pipeline.sampling.call import VerifyCall
from pipeline.sampling.params import GREEDY, SamplingParams
from pipeline.sampling.verify import sample

PROMPT = (57, 82, 25, 87, 55, 60, 59)
PENALISED = SamplingParams(0.9, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2)
CUT = SamplingParams(1.4, min_p=0.2, logit_bias=((5, 2.0), (60, -1.0)), bad_words=((59,), (57, 82)))
EVERYTHING = replace(PENALISED, top_k=40, top_p=0.95, min_p=0.01, logit_bias=((5, 2.0),), bad_words=((60,), (25, 87)))
OPTIONS = [PENALISED, CUT, EVERYTHING, replace(PENALISED, temperature=0.0)]


def plain_text(tiny: TinyModel, count: int, rule: str = "block", seed: int = 11, **options: object) -> tuple[int, ...]:
    """Token by token from the reference's logits."""
    text = list(PROMPT)
    for i in range(count):
        call = VerifyCall((), None, rule=rule, seed=seed, start=i, tokens=tuple(text), **options)  # type: ignore[arg-type]
        text += sample(tiny.logits(text)[-1:], [call])
    return tuple(text[len(PROMPT) :])


@pytest.mark.parametrize("rule", ["block", "coupled"])
@pytest.mark.parametrize("sampling", OPTIONS)
def test_a_burst_sees_its_own_tokens(target: Watched, tiny: TinyModel, sampling: SamplingParams, rule: str) -> None:
    expected = plain_text(tiny, 10, rule, sampling=sampling)
    assert target.call(PROMPT, 10, sampling=sampling, seed=11, rule=rule).output_ids == expected


@pytest.mark.parametrize("sampling", OPTIONS)
def test_coupled_text_is_the_same_for_every_k_and_draft(
    target: Watched, tiny: TinyModel, sampling: SamplingParams
) -> None:
    """Plain, in bursts, and in rounds of any K with right, wrong and half-right drafts; amid other calls too."""
    count = 9
    whole = target.call(PROMPT, count, sampling=sampling, seed=4, rule="coupled").output_ids
    assert whole == plain_text(tiny, count, "coupled", 4, sampling=sampling)
    # An operation on the stand-in device takes many times longer.
    for k in (3,) if isinstance(target.decoder, AwayDecoder) else (0, 1, 2, 4, 6):
        for kind in ("right", "wrong", "half"):
            text: tuple[int, ...] = ()
            while len(text) < count:
                width = min(k, count - len(text) - 1)
                right = whole[len(text) : len(text) + width]
                drafts = tuple(
                    token if kind == "right" or (kind == "half" and i % 2 == 0) else (token + 1) % VOCAB
                    for i, token in enumerate(right)
                )
                with target.held():
                    other = target.model.submit(target.request(PROMPT, 2, sampling=CUT, seed=len(text)))
                    future = target.model.submit(
                        target.request(
                            (*PROMPT, *text), width + 1, draft_ids=drafts, sampling=sampling, seed=4, rule="coupled"
                        )
                    )
                result = future.result(20)
                other.result(20)
                if kind == "right":
                    assert result.total_accepted_draft_tokens == width
                text += result.output_ids
            assert text == whole


def test_coupled_draft_uses_the_targets_noise(target: Watched, tiny: TinyModel) -> None:
    """The same model as draft, with a reduced head too, proposes what the target will choose."""
    sampling = replace(PENALISED, temperature=1.3)
    whole = target.call(PROMPT, 8, sampling=sampling, seed=9, rule="coupled").output_ids
    ids = sorted({*whole, *range(0, VOCAB, 7)})
    reduced = watch(make_decoder(tiny.folder, blocks=48, head_ids=ids), takeover_loss=4)
    found = reduced.call(PROMPT, 8, sampling=sampling, seed=9, rule="coupled").output_ids
    reduced.model.close()
    assert found == whole, "tokens that the head lacks did not win, so they change nothing"


@pytest.mark.parametrize("sampling", [GREEDY, *OPTIONS])
@pytest.mark.parametrize("k", [0, 4])
def test_log_probs_are_teacher_forced(target: Watched, tiny: TinyModel, sampling: SamplingParams, k: int) -> None:
    drafts = target.call(PROMPT, 4, sampling=sampling, seed=1).output_ids[:k]
    result = target.call(
        PROMPT, k + 1 if k else 6, draft_ids=drafts, sampling=sampling, seed=1, rule="match", return_log_probs=True
    )
    assert len(result.log_probs) == len(result.output_ids) > 0
    logits = tiny.logits([*PROMPT, *result.output_ids])[len(PROMPT) - 1 : -1]
    expected = torch.log_softmax(logits, -1)[range(len(result.output_ids)), list(result.output_ids)]
    np.testing.assert_allclose(result.log_probs, expected.numpy(), atol=1e-4)
    assert target.call(PROMPT, 2, sampling=sampling, seed=1).log_probs == ()


@pytest.mark.parametrize("min_tokens", range(6))
@pytest.mark.parametrize("k", [0, 3])
def test_min_tokens_hold_the_end_back_at_every_index(target: Watched, k: int, min_tokens: int) -> None:
    """The end token is what greedy decoding would say at every position: it comes as soon as it may."""
    end = 7
    wants_end = SamplingParams(logit_bias=((end, 1e4),))
    options = {"sampling": wants_end, "end_id": end, "min_tokens": min_tokens}
    held = target.call(PROMPT, 6, sampling=GREEDY, seed=1, end_id=None).output_ids
    if k == 0:
        result = target.call(PROMPT, 6, **options)
        assert result.output_ids == held[:min_tokens]
        return
    result = target.verify(PROMPT, held[:k], **options)
    assert result.output_ids == held[: min(min_tokens, k + 1)]
    assert result.total_accepted_draft_tokens == min(min_tokens, k)
    # A draft that ends too early is not kept, and one that ends in time is the end.
    early = target.verify(PROMPT, (*held[:1], end), **options)
    assert early.output_ids == held[: min(min_tokens, 2)]


def test_the_end_token_inside_a_block_cuts_it(target: Watched) -> None:
    drafts = target.call(PROMPT, 4).output_ids
    for index, end in enumerate(drafts):
        if end in drafts[:index]:
            continue
        result = target.verify(PROMPT, drafts, end_id=end, return_log_probs=True)
        assert result.output_ids == drafts[:index] and len(result.log_probs) == index
        assert result.total_accepted_draft_tokens == index


def test_a_law_that_options_leave_empty_ends_its_call_alone(target: Watched) -> None:
    """An engine that gives -inf to all but one token, and options that forbid this one."""

    def only_five(batch: PackedBatch, logits: torch.Tensor) -> None:
        logits[:, :5] = logits[:, 6:] = -torch.inf

    target.spoil = only_five
    results: list[StepResult | BaseException] = []
    for drafts in ((), (5, 5)):
        for sampling in (SamplingParams(1.0), GREEDY):
            bad = replace(sampling, bad_words=((5,),))
            with target.held():
                futures = [
                    target.model.submit(target.request(PROMPT, len(drafts) + 1, draft_ids=drafts, sampling=option))
                    for option in (bad, sampling)
                ]
            with pytest.raises(StepError, match="no token is possible"):
                futures[0].result(20)
            results.append(futures[1].result(20))
            assert results[-1].output_ids == (5,) * (len(drafts) + 1)
    target.spoil = lambda batch, logits: None
    target.check_idle()


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
@pytest.mark.parametrize("rule", ["token", "block", "match", "coupled"])
def test_logits_that_are_not_finite_end_their_call_alone(target: Watched, spoilt: float, rule: str) -> None:
    """Among several verifies of one pass, whatever the position."""
    sampling = replace(EVERYTHING, top_p=1.0)
    calm = [target.call((*PROMPT, i), 4, draft_ids=(1, 2, 3), sampling=sampling, seed=i, rule=rule) for i in range(3)]
    for position in range(4):

        def spoil(batch: PackedBatch, logits: torch.Tensor, position: int = position) -> None:
            first = 0
            for row in batch.rows:
                if row.logits == 4 and row.tokens[-4] == 1:
                    logits[first + position, 3] = spoilt
                first += row.logits

        target.spoil = spoil
        with target.held():
            futures = [
                target.model.submit(
                    target.request((*PROMPT, i), 4, draft_ids=(1, 2, 3), sampling=sampling, seed=i, rule=rule)
                )
                for i in range(3)
            ]
        for i, future in enumerate(futures):
            if i == 1:
                with pytest.raises(StepError, match="not finite"):
                    future.result(20)
            else:
                assert future.result(20).output_ids == calm[i].output_ids
    target.spoil = lambda batch, logits: None
    target.check_idle()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_tokens": -1}, "min_tokens = -1"),
        ({"sampling": SamplingParams(1.0, logit_bias=((VOCAB, 1.0),))}, f"logit_bias = {VOCAB}"),
        ({"sampling": SamplingParams(1.0, bad_words=((1, VOCAB),))}, f"bad_words = {VOCAB}"),
        ({"rule": "typical"}, "acceptance_rule = 'typical'"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_by_name(
    target: Watched, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        target.call(PROMPT, 3, **options)
