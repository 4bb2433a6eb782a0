"""Penalties, bias, bad words, min_tokens and min-p: against transformers' processors, and position by position."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as reference

from pipeline.errors import InvalidRequestError
from pipeline.sampling.context import Context
from pipeline.sampling.head import Head
from pipeline.sampling.laws import laws, log_probs, processed
from pipeline.sampling.params import GREEDY, SamplingParams
from pipeline.sampling.processors import check_tokens

VOCAB, END = 23, 4
TOKENS = st.integers(0, VOCAB - 1)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 6]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 0.6, 1.3, 5.0]),
    presence_penalty=st.sampled_from([0.0, -0.7, 1.1]),
    frequency_penalty=st.sampled_from([0.0, -0.3, 0.4]),
    logit_bias=st.lists(st.tuples(TOKENS, st.sampled_from([-3.0, 0.5, 2.0])), max_size=4).map(tuple),
    bad_words=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple), max_size=5).map(tuple),
)
CONTEXTS = st.builds(
    Context,
    tokens=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    drafts=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    end_id=st.sampled_from([None, END]),
    min_tokens=st.integers(0, 5),
)


def transformers_law(logits: Tensor, history: list[int], option: SamplingParams, hold: int | None) -> Tensor:
    """The law [vocab] float64 that transformers' processors make, in the order of ours."""
    ids, scores = torch.tensor([history]), logits.double()[None].clone()
    for processor in (
        reference.RepetitionPenaltyLogitsProcessor(option.repetition_penalty),
        Subtract(option),
        *([reference.SequenceBiasLogitsProcessor(summed(option))] if option.logit_bias else []),
        *([Forbid(option)] if option.bad_words else []),
        *([reference.SuppressTokensLogitsProcessor([hold])] if hold is not None else []),
        reference.TemperatureLogitsWarper(option.temperature),
        *([reference.TopKLogitsWarper(option.top_k)] if option.top_k else []),
        *([reference.TopPLogitsWarper(option.top_p)] if option.top_p < 1 else []),
        *([reference.MinPLogitsWarper(option.min_p)] if option.min_p else []),
    ):
        scores = processor(ids, scores)
    return torch.softmax(scores, -1)[0]


class Subtract:
    """Presence and frequency penalties: transformers has none."""

    def __init__(self, option: SamplingParams) -> None:
        self.option = option

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        for token, count in Counter(ids[0].tolist()).items():
            scores[0, token] -= self.option.presence_penalty + self.option.frequency_penalty * count
        return scores


class Forbid(reference.NoBadWordsLogitsProcessor):
    def __init__(self, option: SamplingParams) -> None:
        super().__init__([list(word) for word in set(option.bad_words)])


def summed(option: SamplingParams) -> dict[tuple[int], float]:
    found: dict[tuple[int], float] = {}
    for token, weight in option.logit_bias:
        found[token,] = found.get((token,), 0.0) + weight
    return found


@settings(derandomize=True, deadline=None, max_examples=120)
@given(data=st.data())
def test_mixed_rows_equal_transformers(data: st.DataObject) -> None:
    """Rows of any options side by side, four positions each: the history grows by one draft per position."""
    rows = data.draw(st.integers(1, 4))
    options = [data.draw(PARAMS) for _ in range(rows)]
    contexts = [data.draw(CONTEXTS) for _ in range(rows)]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    logits = torch.randn(rows, 4, VOCAB, generator=generator, dtype=torch.float64) * 3
    given_logits = logits.clone()
    law = laws(logits, options, contexts)
    assert torch.equal(logits, given_logits)
    for row, (option, context) in enumerate(zip(options, contexts, strict=True)):
        for position in range(4):
            history = [*context.tokens, *context.drafts[:position]]
            hold = context.end_id if position < context.min_tokens else None
            expected = transformers_law(logits[row, position], history, option, hold)
            torch.testing.assert_close(law[row, position], expected, rtol=1e-9, atol=1e-12)
        alone = laws(logits[row : row + 1], [option], [context])
        assert torch.equal(alone[0], law[row])
        torch.testing.assert_close(laws(logits.clone(), options, contexts, overwrite=True), law, rtol=0, atol=0)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(option=PARAMS, context=CONTEXTS, seed=st.integers(0, 10**6), width=st.integers(1, VOCAB))
def test_a_reduced_head_is_the_whole_one_without_the_rest(
    option: SamplingParams, context: Context, seed: int, width: int
) -> None:
    """What the head lacks is as if its logit were -inf."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(VOCAB, generator=generator)[:width].sort().values
    logits = torch.randn(1, 4, width, generator=generator, dtype=torch.float64) * 3
    whole = torch.full((1, 4, VOCAB), -torch.inf, dtype=torch.float64)
    whole[:, :, ids] = logits
    found = laws(logits, [option], [context], Head.of(ids, VOCAB))
    torch.testing.assert_close(found, laws(whole, [option], [context])[:, :, ids], equal_nan=True)


def test_greedy_rows_are_processed_too() -> None:
    logits = torch.tensor([[[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]])
    option = SamplingParams(repetition_penalty=2.0)
    context = Context(tokens=[1], drafts=[0])
    assert laws(logits, [option], [context]).argmax(-1).tolist() == [[0, 0]]
    assert laws(logits, [dataclasses.replace(option, presence_penalty=1.0)], [context]).argmax(-1).tolist() == [[0, 2]]
    assert laws(logits, [GREEDY], [Context(end_id=0, min_tokens=1)]).argmax(-1).tolist() == [[1, 0]]


def test_rows_that_ask_for_nothing_are_not_copied() -> None:
    logits = torch.randn(2, 2, 9)
    assert processed(logits, [GREEDY, SamplingParams(0.7)], [Context(range(5)), Context(end_id=1)]) is logits


def test_half_precision_logits_are_edited_in_float32() -> None:
    logits = torch.randn(1, 1, 50).half()
    option = SamplingParams(1.0, presence_penalty=0.001)
    found = laws(logits, [option], [Context([3])])
    expected = logits.float()
    expected[0, 0, 3] -= 0.001
    torch.testing.assert_close(found, torch.softmax(expected, -1))


def test_a_law_with_no_token_left_is_nan_and_its_neighbours_are_not() -> None:
    option = SamplingParams(1.0, bad_words=((0,), (1,)))
    for params in (option, dataclasses.replace(option, temperature=0.0), dataclasses.replace(option, top_p=0.5)):
        law = laws(torch.zeros(2, 1, 2), [params, SamplingParams(1.0)])
        assert bool(law[0].isnan().all())
        assert law[1].tolist() == [[0.5, 0.5]]


def test_log_probs_are_of_the_raw_law() -> None:
    logits = torch.randn(5, 1000) * 4
    tokens = torch.tensor([3, 999, 0, 500, 7])
    expected = torch.log_softmax(logits.double(), -1)[torch.arange(5), tokens]
    found = log_probs(logits, tokens)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(found[2:3], log_probs(logits[2:3], tokens[2:3]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_p": -0.1}, "min_p = -0.1: must be a number in .0, 1."),
        ({"min_p": math.nan}, "min_p = nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0: must be a number in .0.01, 100."),
        ({"repetition_penalty": math.inf}, "repetition_penalty = inf"),
        ({"presence_penalty": 100.5}, "presence_penalty = 100.5: must be a number in .-100, 100."),
        ({"frequency_penalty": -math.inf}, "frequency_penalty = -inf"),
        ({"logit_bias": ((3, math.nan),)}, "logit_bias = nan"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias = -1: token ids are 0 or more"),
        ({"bad_words": ((),)}, r"bad_words = \[\]: each must hold"),
        ({"bad_words": ((3, -2),)}, r"bad_words = \[3, -2\]"),
    ],
)
def test_options_out_of_range_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams(1.0, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "end_id", "message"),
    [
        (SamplingParams(logit_bias=((7, 1.0),)), None, r"logit_bias = 7: must be a token id in \[0, 7\)"),
        (SamplingParams(bad_words=((1, 9),)), None, "bad_words = 9"),
        (SamplingParams(), 7, "end_id = 7"),
        (
            SamplingParams(bad_words=tuple((i,) for i in range(6))),
            6,
            "bad_words = '7 last tokens': must leave one of 7",
        ),
    ],
)
def test_tokens_outside_the_vocabulary_are_refused(option: SamplingParams, end_id: int | None, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_tokens(option, end_id, 7)
