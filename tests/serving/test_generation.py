"""What a client sends becomes a GenerationRequest, or an error that names the input."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.orchestrator.statistics import RequestStatistics, RoundRecord, StatisticsCollector
from pipeline.sampling.params import SamplingParams
from pipeline.serving.contract import SPEC_DECODE, Tensors
from pipeline.serving.generation import decode_generation, encode_chunk, encode_chunks, encode_generation


def tensors(**values: Any) -> Tensors:
    found: Tensors = {}
    for name, value in {"text_input": "hi", **values}.items():
        spec = SPEC_DECODE.input(name)
        items = value if isinstance(value, list) else [value]
        if spec.kind == "STRING":
            items = [item.encode() if isinstance(item, str) else item for item in items]
        found[name] = np.array(items, spec.dtype)
    return found


def decode(parameters: dict[str, Any] | None = None, **values: Any) -> GenerationRequest:
    return decode_generation(tensors(**values), parameters or {}, "id")


def test_defaults() -> None:
    assert decode() == GenerationRequest("hi", request_id="id")


FULL = GenerationRequest(
    text_input="hi",
    max_tokens=9,
    sampling=SamplingParams(
        temperature=0.5,
        top_k=7,
        top_p=0.75,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
    ),
    seed=2**64 - 1,
    stop_words=("a", "ä b"),
    end_id=3,
    stream=True,
    exclude_input_in_output=True,
    return_perf_metrics=True,
    num_draft_tokens=2,
    acceptance_rule="block",
    chat=True,
    request_id="id",
    min_tokens=4,
    bad_words=("x y", "z"),
    embedding_bias=(("w", 2.5), (" w", -3.0)),
    return_log_probs=True,
    num_return_sequences=3,
    stream_tokens="each",
)


def test_every_field_goes_there_and_back() -> None:
    """What the client encodes is what the server decodes, for all fields together and each alone."""
    defaults = GenerationRequest("hi", request_id="id")
    own = ("waited_s", "on_round")  # the server's
    sent = [spec for spec in fields(GenerationRequest) if spec.name not in own]
    for spec in sent:
        assert getattr(FULL, spec.name) != spec.default, "a field that the test leaves out"
    alone = [
        replace(defaults, **{spec.name: getattr(FULL, spec.name)})
        for spec in sent
        if spec.name != "stream_tokens"  # needs stream
    ]
    for request in (defaults, FULL, *alone):
        encoded, parameters = encode_generation(request)
        assert decode_generation(encoded, parameters, "id") == request
        for name, array in encoded.items():
            assert array.dtype == SPEC_DECODE.input(name).dtype


@given(
    st.text(min_size=1).filter(lambda text: "\x00" not in text),
    st.integers(1, 1000),
    st.integers(0, 2**64 - 1),
    st.lists(st.text(min_size=1, max_size=5), max_size=4),
    st.booleans(),
)
def test_any_request(text: str, max_tokens: int, seed: int, words: list[str], flag: bool) -> None:
    request = replace(
        FULL, text_input=text, max_tokens=max_tokens, min_tokens=max_tokens // 2, seed=seed, stop_words=tuple(words),
        bad_words=tuple(words), embedding_bias=tuple((word, 0.5) for word in words), chat=flag,
    )  # fmt: skip
    assert decode_generation(*encode_generation(request), "id") == request


def test_token_ids_have_no_input() -> None:
    """Bias and bad words go to a server as words."""
    for sampling in (SamplingParams(logit_bias=((1, 2.0),)), SamplingParams(bad_words=((1, 2),))):
        with pytest.raises(InvalidRequestError, match="a server takes words, not token ids"):
            encode_generation(GenerationRequest("hi", sampling=sampling))


def test_a_number_that_no_tensor_holds() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens = 1099511627776: must fit INT32"):
        encode_generation(GenerationRequest("hi", 1 << 40))


def test_min_length_is_min_tokens() -> None:
    """NVIDIA's older name, which genai-perf sends."""
    assert decode(min_length=4).min_tokens == decode(min_tokens=4).min_tokens == 4
    assert decode(min_length=4, min_tokens=4).min_tokens == 4
    assert decode(min_length=0, min_tokens=0).min_tokens == decode().min_tokens == 0


def test_inputs_that_ask_for_nothing() -> None:
    """NVIDIA's clients send them at their harmless values."""
    harmless = {
        "beam_width": 1,
        "length_penalty": 1.0,
        "pad_id": 0,
        "use_draft_logits": True,
        "return_context_logits": False,
        "return_generation_logits": False,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "sampling_parameters": "{}",
    }
    assert decode(**harmless) == GenerationRequest("hi", request_id="id")


def test_top_k_or_top_p_alone_ask_for_sampling() -> None:
    assert decode(top_p=0.5).sampling == SamplingParams(1.0, 0, 0.5)
    assert decode(top_k=5).sampling == SamplingParams(1.0, 5, 1.0)
    assert decode(min_p=0.25).sampling == SamplingParams(1.0, min_p=0.25)
    assert decode(presence_penalty=0.5).sampling.greedy
    assert decode(top_k=1).sampling.greedy
    assert decode(top_p=0.5, temperature=0.0).sampling.greedy


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text_input": ""}, "text_input = ''"),
        ({"text_input": b"\xff"}, "text_input = .*UTF-8"),
        ({"max_tokens": 0}, "max_tokens = 0: must be at least 1"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"temperature": -1.0}, "temperature = -1.0"),
        ({"top_k": -1}, "top_k = -1"),
        ({"top_p": 0.0}, "top_p = 0.0"),
        ({"num_draft_tokens": -1}, "num_draft_tokens = -1"),
        ({"stop_words": [""]}, "stop_words = ''"),
        ({"min_p": 1.5}, "min_p = 1.5"),
        ({"min_p": float("nan")}, "min_p = nan"),
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0"),
        ({"presence_penalty": float("inf")}, "presence_penalty = inf"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty = nan"),
        ({"min_tokens": -1}, "min_tokens = -1: must be between 0 and max_tokens = 64"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens = 9: must be between 0 and max_tokens = 8"),
        ({"min_length": -1}, "min_length = -1: must be 0 or more"),
        ({"min_length": 4, "min_tokens": 5}, "min_length = 4: is another name of min_tokens, which is 5"),
        ({"bad_words": [""]}, "bad_words = ''"),
        ({"bad_words": ["a"] * 65}, "bad_words = '65 words': at most 64"),
        ({"stop_words": ["x" * 1025]}, "stop_words = 'x+': each must have 1 to 1024 characters"),
        ({"bad_words": [b"\xff"]}, "bad_words = .*UTF-8"),
        ({"embedding_bias_words": ["a"]}, "embedding_bias_weights = '0 weights': embedding_bias_words holds 1 words"),
        ({"embedding_bias_weights": [1.0]}, "embedding_bias_weights = '1 weights': embedding_bias_words holds 0"),
        ({"embedding_bias_words": ["a"], "embedding_bias_weights": [float("nan")]}, "embedding_bias_weights = nan"),
        ({"embedding_bias_words": [""], "embedding_bias_weights": [1.0]}, "embedding_bias_words = ''"),
        ({"num_return_sequences": 0}, "num_return_sequences = 0: must be between 1 and 64"),
        ({"num_return_sequences": 65}, "num_return_sequences = 65: must be between 1 and 64"),
        ({"beam_width": 4}, "beam_width = 4: must be 1: beam search is not offered"),
        ({"length_penalty": 2.0}, "length_penalty = 2.0: acts in beam search alone"),
        ({"return_context_logits": True}, "return_context_logits = True: logits are not returned"),
        ({"return_generation_logits": True}, "return_generation_logits = True: logits are not returned"),
        ({"guided_decoding_guide": "{}"}, "guided_decoding_guide = '{}': not supported: guided decoding"),
        ({"guided_decoding_guide_type": "json"}, "guided_decoding_guide_type = 'json': not supported: guided decoding"),
        ({"lora_task_id": 7}, "lora_task_id = 7: not supported: LoRA"),
        ({"lora_config": [1, 2, 3]}, "lora_config = 'shape .*not supported: LoRA"),
        ({"prompt_embedding_table": [1.0, 2.0]}, "prompt_embedding_table = 'shape .*not supported: prompt tables"),
        ({"prompt_vocab_size": 8}, "prompt_vocab_size = 8: not supported: prompt tables"),
        ({"image_url_input": "http://x"}, "image_url_input = 'http://x': not supported: images"),
        ({"video_bytes_input": [1, 2]}, "video_bytes_input = 'shape .*not supported: videos"),
        ({"decoder_text_input": "x"}, "decoder_text_input = 'x': not supported: encoder-decoder models"),
        ({"sampling_parameters": '{"n": 2}'}, "sampling_parameters = .*not supported"),
    ],
)
def test_errors_name_the_input(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        decode(**values)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"best_of": 4}, "best_of = 4: not supported; inputs are text_input, max_tokens"),
        ({"stream_tokens": "none"}, "stream_tokens = 'none': must be one of round, each"),
        ({"stream_tokens": "each"}, "stream_tokens = 'each': needs stream = true"),
        ({"stream_tokens": 1}, "stream_tokens = 1: must be a text"),
        ({"chat": "yes"}, "chat = 'yes': must be true or false"),
        ({"acceptance_rule": 1}, "acceptance_rule = 1: must be a text"),
    ],
)
def test_parameters_are_not_ignored(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        decode(parameters)


def test_parameters_of_triton_itself_pass() -> None:
    assert decode({"triton_enable_empty_final_response": True, "id": "mine"}).text_input == "hi"


def test_prompt_missing() -> None:
    with pytest.raises(InvalidRequestError, match="text_input = None: must be given"):
        decode_generation({"max_tokens": np.array([1], np.int32)}, {}, "id")


def statistics(**changes: Any) -> RequestStatistics:
    collector = StatisticsCollector(prompt_tokens=5, rule="token", seed=0, reproducible=True)
    collector.add(RoundRecord(0, "model", "why", 4, 2, 3))
    return replace(collector.finish("eos", 0.1, 0.2), **changes)


def test_chunks() -> None:
    """A chunk of a stream, and its last one."""
    record = RoundRecord(0, "model", "why", 4, 2, 3)
    middle = encode_chunk(Chunk("ä", (1, 2), record))
    assert set(middle) == {"text_output", "token_ids", "spec_decode_round", "sequence_index"}
    assert middle["text_output"].tolist() == [["ä".encode()]] and middle["token_ids"].tolist() == [[[1, 2]]]
    last = encode_chunk(Chunk("", finish_reason="eos", statistics=statistics(), sequence_index=3))
    assert last["token_ids"].shape == (1, 1, 0) and last["finish_reason"].tolist() == [[b"eos"]]
    assert json.loads(last["spec_decode_stats"].item())["num_accepted_draft_tokens"] == 2
    assert last["acceptance_rate"].tolist() == [[0.5]]
    assert last["total_draft_tokens"].tolist() == [[4]]
    assert last["num_input_tokens"].tolist() == [[5]] and last["num_output_tokens"].tolist() == [[3]]
    assert last["sequence_index"].tolist() == [[3]]
    with_log_probs = encode_chunk(Chunk("a", (1, 2), log_probs=(-0.5, -1.0), cum_log_prob=-2.5))
    assert with_log_probs["output_log_probs"].tolist() == [[[-0.5, -1.0]]]
    assert with_log_probs["cum_log_probs"].tolist() == [[-2.5]]
    for name, array in {**middle, **last, **with_log_probs}.items():
        assert array.dtype == SPEC_DECODE.output(name).dtype
        assert array.ndim == 1 + len(SPEC_DECODE.output(name).dims)


def test_answers_together() -> None:
    """Without stream, several answers are rows of one response; sums are over all of them."""
    tensors = encode_chunks(
        [
            Chunk("ab", (1, 2), None, "length", statistics(), (-1.0, -2.0), -3.0, 0),
            Chunk(
                "c", (3,), None, "eos", statistics(num_draft_tokens=6, num_accepted_draft_tokens=6), (-0.5,), -0.5, 1
            ),
        ]
    )
    assert tensors["text_output"].tolist() == [[b"ab", b"c"]]
    assert tensors["finish_reason"].tolist() == [[b"length", b"eos"]]
    assert tensors["token_ids"].tolist() == [[[1, 2], [3, -1]]]
    assert tensors["output_log_probs"].tolist() == [[[-1.0, -2.0], [-0.5, 0.0]]]
    assert tensors["cum_log_probs"].tolist() == [[-3.0, -0.5]]
    assert tensors["total_draft_tokens"].tolist() == [[10]]
    np.testing.assert_allclose(tensors["acceptance_rate"], [[0.8]])
    assert tensors["num_input_tokens"].tolist() == [[5]] and tensors["num_output_tokens"].tolist() == [[6]]
    assert len(tensors["spec_decode_stats"][0]) == 2 and "sequence_index" not in tensors
