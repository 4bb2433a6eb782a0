"""What a client sends becomes a GenerationRequest, or an error that names the input."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.orchestrator.statistics import RoundRecord, StatisticsCollector
from pipeline.sampling.params import SamplingParams
from pipeline.serving.contract import SPEC_DECODE, Tensors
from pipeline.serving.generation import decode_generation, encode_chunk


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


@given(
    st.text(min_size=1).filter(lambda text: "\x00" not in text),
    st.integers(1, 1000),
    st.integers(0, 2**64 - 1),
    st.lists(st.text(min_size=1, max_size=5), max_size=4),
    st.booleans(),
)
def test_every_input(text: str, max_tokens: int, seed: int, stop_words: list[str], flag: bool) -> None:
    request = decode(
        {"acceptance_rule": "block", "chat": flag},
        text_input=text,
        max_tokens=max_tokens,
        temperature=0.5,
        top_k=7,
        top_p=0.75,
        seed=seed,
        stop_words=stop_words,
        end_id=3,
        stream=flag,
        exclude_input_in_output=flag,
        return_perf_metrics=flag,
        num_draft_tokens=2,
        min_length=0,
        sampling_parameters="{}",
    )
    assert request == GenerationRequest(
        text, max_tokens, SamplingParams(0.5, 7, 0.75), seed, tuple(stop_words), 3, flag, flag, flag, 2, "block",
        flag, "id",
    )  # fmt: skip


def test_top_k_or_top_p_alone_ask_for_sampling() -> None:
    assert decode(top_p=0.5).sampling == SamplingParams(1.0, 0, 0.5)
    assert decode(top_k=5).sampling == SamplingParams(1.0, 5, 1.0)
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
        ({"min_length": 4}, "min_length = 4: a minimum length is not supported"),
        ({"sampling_parameters": '{"n": 2}'}, "sampling_parameters = .*not supported"),
    ],
)
def test_errors_name_the_input(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        decode(**values)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"beam_width": 4}, "beam_width = 4: not supported; inputs are text_input, max_tokens"),
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


def test_chunks() -> None:
    record = RoundRecord(0, "model", "why", 4, 2, 3)
    middle = encode_chunk(Chunk("ä", (1, 2), record))
    assert set(middle) == {"text_output", "token_ids", "spec_decode_round"}
    assert middle["text_output"].tolist() == [["ä".encode()]] and middle["token_ids"].tolist() == [[1, 2]]
    collector = StatisticsCollector(prompt_tokens=1, rule="token", seed=0, reproducible=True)
    collector.add(record)
    last = encode_chunk(Chunk("", finish_reason="eos", statistics=collector.finish("eos", 0.1, 0.2)))
    assert last["token_ids"].shape == (1, 0) and last["finish_reason"].tolist() == [[b"eos"]]
    assert json.loads(last["spec_decode_stats"].item())["num_accepted_draft_tokens"] == 2
    assert last["acceptance_rate"].tolist() == [[0.5]]
    assert last["total_draft_tokens"].tolist() == [[4]]
    for name, array in {**middle, **last}.items():
        assert array.dtype == SPEC_DECODE.output(name).dtype
