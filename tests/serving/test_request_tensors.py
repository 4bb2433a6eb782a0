"""StepRequest over the wire and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.step import StepRequest
from pipeline.engine.tensorrt_capabilities import TENSORRT_LLM_CAPABILITIES
from pipeline.errors import InvalidRequestError
from pipeline.sampling.params import GREEDY, SamplingParams
from pipeline.serving.contract import STEP, STEP_STATS, Tensors
from pipeline.serving.dialect import Dialect
from pipeline.serving.request_tensors import decode_request, encode_request, encode_stop, is_stop
from pipeline.serving.sampling_tensors import encode_sampling

TOKENS = st.integers(0, 2**31 - 1)
VOCAB = 5
ABLE = TENSORRT_LLM_CAPABILITIES
NVIDIA = Dialect(
    own_tensors=False, options=ABLE.options, temperature_first=True, max_top_k=ABLE.max_top_k, vocab_size=5000
)


@st.composite
def requests(draw: st.DrawFn) -> StepRequest:
    drafts = draw(st.lists(TOKENS, max_size=4))
    logits = None
    if drafts and draw(st.booleans()):
        flat = draw(st.lists(st.floats(width=32, allow_nan=False), min_size=VOCAB, max_size=VOCAB))
        logits = np.tile(np.array(flat, np.float32), (len(drafts), 1))
    sampling = SamplingParams(
        draw(st.floats(0, 100, width=32)),
        draw(st.integers(0, 1000)),
        draw(st.floats(0.125, 1, width=32)),
        draw(st.floats(0, 1, width=32)),
        draw(st.sampled_from([1.0, 0.5, 1.25])),
        draw(st.sampled_from([0.0, -0.5])),
        draw(st.sampled_from([0.0, 1.5])),
        tuple(sorted(draw(st.dictionaries(st.integers(0, 60), st.floats(0.125, 100, width=32), max_size=4)).items())),
        tuple(map(tuple, draw(st.lists(st.lists(TOKENS, min_size=1, max_size=3), max_size=3)))),
    )
    return StepRequest(
        request_id=draw(st.text(max_size=5)),
        input_ids=tuple(draw(st.lists(TOKENS, min_size=1, max_size=8))),
        max_new_tokens=len(drafts) + 1 if drafts else draw(st.integers(1, 100)),
        draft_ids=tuple(drafts),
        draft_logits=logits,
        sampling=sampling,
        seed=draw(st.integers(0, 2**64 - 1)),
        end_id=draw(st.none() | TOKENS),
        min_tokens=draw(st.integers(0, 20)),
        rule=draw(st.sampled_from(["auto", "token", "block", "coupled"])),
        return_logits=draw(st.booleans()),
        return_log_probs=draw(st.booleans()),
        arrival=draw(st.integers(0, 1 << 40)),
        priority=draw(st.integers(0, 9)),
    )


def through_triton(tensors: Tensors) -> Tensors:
    """What Triton does on the way: checks types and dims, applies `reshape`."""
    arrived = {}
    for name, array in tensors.items():
        spec = STEP.input(name)
        assert array.dtype == spec.dtype
        assert array.shape[0] == 1 and len(array.shape) == 1 + len(spec.dims)
        assert all(want in (-1, have) for want, have in zip(spec.dims, array.shape[1:], strict=True))
        arrived[name] = array.reshape(1) if spec.scalar else array
    return arrived


@given(requests(), st.booleans())
def test_round_trip(request: StepRequest, with_vocab: bool) -> None:
    # top_k beyond the vocabulary is sent as off, which is another way to say the same
    with_vocab = with_vocab and request.sampling.top_k < 64
    sent = encode_request(request, Dialect(vocab_size=64 if with_vocab else None))
    call = decode_request(through_triton(sent.tensors), sent.parameters, request.request_id)
    found = call.request
    for name in (
        "request_id",
        "input_ids",
        "max_new_tokens",
        "draft_ids",
        "end_id",
        "min_tokens",
        "rule",
        "return_logits",
        "return_log_probs",
        "arrival",
        "priority",
    ):
        assert getattr(found, name) == getattr(request, name)
    if request.sampling.greedy:
        # One-hot: what acts behind the logits, and the seed, do not matter.
        kept = replace(request.sampling, temperature=1.0, top_k=1, top_p=1.0, min_p=0.0)
        assert found.sampling == kept
    else:
        assert (found.sampling, found.seed) == (request.sampling, request.seed)
    if request.draft_logits is None:
        assert found.draft_logits is None
    else:
        assert found.draft_logits is not None
        np.testing.assert_array_equal(found.draft_logits, request.draft_logits)
    assert not call.include_input
    assert not call.perf_metrics
    assert STEP_STATS in sent.outputs
    assert ("generation_logits" in sent.outputs) is request.return_logits
    assert ("output_log_probs" in sent.outputs) is request.return_log_probs


def test_off_is_sent_as_off_and_greedy_as_top_k_1() -> None:
    sampled = encode_request(StepRequest("r", (1,), 1, sampling=SamplingParams(temperature=0.5))).tensors
    assert sampled["runtime_top_k"].item() == 0 and sampled["runtime_top_p"].item() == 1.0
    assert sampled["exclude_input_in_output"].item() is True
    greedy = encode_request(StepRequest("r", (1,), 1, sampling=GREEDY)).tensors
    assert greedy["runtime_top_k"].item() == 1 and "temperature" not in greedy


def test_only_what_is_set_crosses() -> None:
    """Each tensor costs 20 to 30 us."""
    names = set(encode_request(StepRequest("r", (1,), 1, sampling=SamplingParams(0.5))).tensors)
    assert names == {
        "input_ids",
        "input_lengths",
        "request_output_len",
        "exclude_input_in_output",
        "runtime_top_k",
        "runtime_top_p",
        "temperature",
        "seed",
    }


def test_bias_and_bad_words_have_nvidias_form() -> None:
    sampling = SamplingParams(logit_bias=((2, 1.5), (0, -1.0), (2, 0.25)), bad_words=((7,), (8, 9, 4)))
    tensors = encode_sampling(sampling, Dialect(vocab_size=5))
    assert tensors["embedding_bias"].tolist() == [[-1.0, 0.0, 1.75, 0.0, 0.0]]
    assert tensors["bad_words_list"].tolist() == [[[7, 8, 9, 4], [1, 4, -1, -1]]]
    assert encode_sampling(sampling)["embedding_bias"].shape == (1, 3)
    with pytest.raises(InvalidRequestError, match=r"logit_bias = 2: must be a token id in \[0, 2\)"):
        encode_sampling(sampling, Dialect(vocab_size=2))


def test_nvidias_engines_apply_penalties_after_the_temperature() -> None:
    options = SamplingParams(0.5, repetition_penalty=1.5, presence_penalty=0.25, frequency_penalty=-1.0)
    sent = encode_request(StepRequest("r", (1,), 1, sampling=options), NVIDIA).tensors
    np.testing.assert_allclose(sent["presence_penalty"], 0.25 / (0.5 + 1e-6), rtol=1e-6)
    np.testing.assert_allclose(sent["frequency_penalty"], -1.0 / (0.5 + 1e-6), rtol=1e-6)
    at_one = encode_request(StepRequest("r", (1,), 1, sampling=replace(options, temperature=1.0)), NVIDIA).tensors
    assert at_one["presence_penalty"].item() == 0.25  # it divides by nothing there
    assert sent["repetition_penalty"].item() == 1.5
    greedy = encode_request(StepRequest("r", (1,), 1, sampling=SamplingParams(presence_penalty=0.25)), NVIDIA)
    np.testing.assert_allclose(greedy.tensors["presence_penalty"], 0.25, rtol=1e-5)  # no temperature is sent


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SamplingParams(1.0, min_p=0.5), "min_p = 0.5: the engine cannot apply it; it applies temperature, top_k"),
        (SamplingParams(repetition_penalty=2.0, logit_bias=((1, 1.0),)), "repetition_penalty = 2.0: .*after the bias"),
        (SamplingParams(1.0, top_k=1025), "top_k = 1025: the engine keeps at most 1024"),
        (SamplingParams(1.0, logit_bias=((5000, 1.0),)), r"logit_bias = 5000: must be a token id in \[0, 5000\)"),
    ],
)
def test_what_nvidias_engines_cannot_do_is_refused(options: SamplingParams, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        encode_request(StepRequest("r", (1,), 1, sampling=options), NVIDIA)


def test_top_k_that_keeps_all_is_off() -> None:
    """The engine would cut it to 1024, which may be less than the vocabulary."""
    for top_k, sent in ((4999, None), (5000, 0), (10**6, 0), (1024, 1024)):
        request = StepRequest("r", (1,), 1, sampling=SamplingParams(1.0, top_k=top_k))
        if sent is None:
            with pytest.raises(InvalidRequestError, match="top_k"):
                encode_request(request, NVIDIA)
        else:
            assert encode_request(request, NVIDIA).tensors["runtime_top_k"].item() == sent


def test_nvidias_engines_are_sent_nothing_of_ours() -> None:
    """Unknown outputs are an error there, parameters mean nothing, and it throws without the first two outputs."""
    sent = encode_request(StepRequest("r", (1,), 1, rule="token", arrival=3), NVIDIA)
    assert not sent.parameters and STEP_STATS not in sent.outputs
    assert {"output_ids", "sequence_length", "total_draft_tokens"} <= set(sent.outputs)


def test_nvidias_engines_are_sent_no_place_outside_their_logits() -> None:
    """They write where they are told: min_tokens at the end token, bad words and bias at theirs."""
    quiet = encode_request(StepRequest("r", (1,), 1, min_tokens=3), NVIDIA)
    assert "min_tokens" not in quiet.tensors
    assert encode_request(StepRequest("r", (1,), 1, end_id=2, min_tokens=3), NVIDIA).tensors["min_tokens"].item() == 3
    for name, request in (
        ("bad_words", StepRequest("r", (1,), 1, sampling=SamplingParams(bad_words=((1, 5000),)))),
        ("logit_bias", StepRequest("r", (1,), 1, sampling=SamplingParams(logit_bias=((5000, 1.0),)))),
    ):
        with pytest.raises(InvalidRequestError, match=rf"{name} = 5000: must be a token id in \[0, 5000\)"):
            encode_request(request, NVIDIA)


def minimal(**changes: Any) -> Tensors:
    tensors: dict[str, Any] = {"input_ids": [[4, 5]], "input_lengths": [2], "request_output_len": [3], **changes}
    return {
        name: np.array(value, np.float32 if name in ("temperature", "runtime_top_p") else np.int32)
        if not isinstance(value, np.ndarray)
        else value
        for name, value in tensors.items()
        if value is not None
    }


def test_absent_inputs_take_nvidias_defaults() -> None:
    call = decode_request(minimal(), {}, "r")
    assert call.request.sampling.greedy
    assert call.request.end_id is None and call.request.draft_logits is None
    assert call.include_input and not call.perf_metrics


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": None}, "input_ids = None: must be given"),
        ({"input_lengths": None}, "input_lengths = None: must be given"),
        ({"request_output_len": None}, "request_output_len = None: must be given"),
        ({"input_ids": [[]], "input_lengths": [0]}, "input_ids = .*at least one"),
        ({"input_lengths": [3]}, "input_lengths = 3: input_ids holds 2 tokens"),
        ({"input_lengths": [2, 2]}, "input_lengths = .*one value"),
        ({"input_ids": [[4, 5], [6, 7]]}, r"input_ids = 'shape \[2, 2\]': must be \[1, n\]"),
        ({"input_ids": [4, 5]}, r"input_ids = 'shape \[2\]'"),
        ({"input_ids": [[4, -5]]}, "input_ids = -5"),
        ({"request_output_len": [0]}, "request_output_len = 0: must be at least 1"),
        ({"draft_input_ids": [[7]]}, r"request_output_len = 3: must be K \+ 1 = 2"),
        ({"draft_logits": np.zeros((1, 1, 9), np.float32)}, r"draft_logits = 'shape \[1, 9\]'.*K = 0"),
        ({"draft_logits": np.zeros((1, 9), np.float32)}, r"draft_logits = 'shape \[1, 9\]'"),
        ({"draft_logits": np.zeros((1, 1, 9), np.float16)}, "draft_logits = 'float16': must be float32"),
        ({"temperature": [float("nan")], "runtime_top_k": [0]}, "temperature = nan"),
        ({"temperature": [-1.0], "runtime_top_k": [0]}, "temperature = -1.0"),
        ({"runtime_top_p": [0.0]}, "runtime_top_p = 0.0"),
        ({"runtime_top_k": [-1]}, "runtime_top_k = -1"),
        ({"runtime_min_p": np.array([2.0])}, "runtime_min_p = 2.0"),
        ({"repetition_penalty": [0]}, "repetition_penalty = 0.0"),
        ({"presence_penalty": [101]}, "presence_penalty = 101.0"),
        ({"frequency_penalty": np.array([float("nan")])}, "frequency_penalty = nan"),
        ({"min_tokens": [-1]}, "min_tokens = -1: must be 0 or more"),
        ({"embedding_bias": np.array([[1.0, float("nan")]])}, "embedding_bias = nan"),
        ({"embedding_bias": np.zeros(3)}, r"embedding_bias = 'shape \[3\]'"),
        ({"bad_words_list": [[[1, 2]]]}, r"bad_words_list = 'shape \[1, 1, 2\]'"),
        ({"bad_words_list": [[[1, 2], [3, -1]]]}, r"bad_words_list = \[3\]: must rise"),
        ({"bad_words_list": [[[1, 2], [2, 2]]]}, r"bad_words_list = \[2, 2\]: must rise"),
        ({"bad_words_list": [[[1, -2], [2, -1]]]}, r"bad_words_list = \[1, -2\]"),
    ],
)
def test_errors_name_tensor_value_and_limit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        decode_request(minimal(**changes), {}, "r")


def test_parameters_have_types() -> None:
    with pytest.raises(InvalidRequestError, match="acceptance_rule = 3"):
        decode_request(minimal(), {"acceptance_rule": 3}, "r")
    with pytest.raises(InvalidRequestError, match="arrival = 'first'"):
        decode_request(minimal(), {"arrival": "first"}, "r")
    with pytest.raises(InvalidRequestError, match="priority = -1: must be 0 or more"):
        decode_request(minimal(), {"priority": -1}, "r")


def test_sender_checks_too() -> None:
    with pytest.raises(InvalidRequestError, match="K = 1 drafts"):
        encode_request(StepRequest("r", (1,), 2, draft_ids=(2,), draft_logits=np.zeros((2, 3), np.float32)))
    with pytest.raises(InvalidRequestError, match="seed"):
        encode_request(StepRequest("r", (1,), 2, seed=1 << 64))


def test_stop() -> None:
    assert is_stop(through_triton(encode_stop().tensors))
    assert not is_stop(through_triton(encode_request(StepRequest("r", (1,), 1)).tensors))
