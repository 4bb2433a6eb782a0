"""StepResult over the wire and back, also from an engine that knows NVIDIA's outputs only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine.step import KvUse, StepRequest, StepResult
from pipeline.errors import StepError
from pipeline.serving.contract import STEP, Tensors
from pipeline.serving.dialect import OWN, Dialect
from pipeline.serving.request_tensors import StepCall, decode_request, encode_request
from pipeline.serving.result_tensors import decode_result, encode_result, encode_stopped

COUNT = st.integers(0, 1 << 30)


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[StepRequest, StepResult]:
    drafts = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    want_logits = draw(st.booleans())
    most = len(drafts) + 1 if drafts else draw(st.integers(1, 6))
    want_log_probs = draw(st.booleans())
    request = StepRequest("r", (1, 2), most, drafts, return_logits=want_logits, return_log_probs=want_log_probs)
    used = draw(st.integers(0, len(drafts)))
    accepted = draw(st.integers(0, used))
    new = drafts[:accepted] + tuple(draw(st.lists(st.integers(0, 9), max_size=1 if drafts else most)))
    result = StepResult(
        output_ids=new,
        total_draft_tokens=used,
        total_accepted_draft_tokens=accepted,
        generation_logits=np.full((len(new), 3), 0.5, np.float32) if want_logits else None,
        log_probs=tuple(-0.5 * i for i in range(len(new))) if want_log_probs else (),
        kv=KvUse(*draw(st.tuples(COUNT, COUNT, COUNT, COUNT, COUNT))),
        compute_s=draw(st.floats(0, 1e6)),
    )
    return request, result


NVIDIA = Dialect(own_tensors=False, drops_drafts=True)


def answer(request: StepRequest, result: StepResult, dialect: Dialect) -> Tensors:
    sent = encode_request(request, dialect)
    tensors = encode_result(result, decode_request(sent.tensors, sent.parameters, "r"), sent.outputs)
    for name, array in tensors.items():
        spec = STEP.output(name)
        assert array.dtype == spec.dtype and array.shape[0] == 1 and array.ndim == 1 + len(spec.dims)
    assert set(tensors) == set(sent.outputs)
    return tensors


@given(exchanges())
def test_round_trip(exchange: tuple[StepRequest, StepResult]) -> None:
    request, result = exchange
    found = decode_result(answer(request, result, OWN), request)
    for name in ("output_ids", "total_draft_tokens", "total_accepted_draft_tokens", "log_probs", "kv", "compute_s"):
        assert getattr(found, name) == getattr(result, name)
    if result.generation_logits is None:
        assert found.generation_logits is None
    else:
        np.testing.assert_array_equal(found.generation_logits, result.generation_logits)


@given(exchanges())
def test_nvidia_outputs_alone(exchange: tuple[StepRequest, StepResult]) -> None:
    request, result = exchange
    found = decode_result(answer(request, result, NVIDIA), request, NVIDIA)
    assert found.output_ids == result.output_ids
    assert found.total_draft_tokens == result.total_draft_tokens
    assert found.kv == KvUse(result.kv.alloc_new_blocks, result.kv.reused_blocks, result.kv.alloc_total_blocks)
    assert found.compute_s == 0.0


def test_nvidia_counts_a_hidden_end_token_wrong() -> None:
    request = StepRequest("r", (1,), 4, (5, 6, 7))
    tensors = {
        "output_ids": np.array([[[5, 6]]], np.int32),  # both accepted, the correction was the end token
        "sequence_length": np.array([[2]], np.int32),
        "total_draft_tokens": np.array([[3]], np.int32),
        "total_accepted_draft_tokens": np.array([[1]], np.int32),
    }
    assert decode_result(tensors, request).total_accepted_draft_tokens == 2


def test_log_probs_are_summed_for_who_asks() -> None:
    request = StepRequest("r", (1,), 2, return_log_probs=True)
    result = StepResult((3, 4), log_probs=(-0.5, -0.25))
    tensors = encode_result(result, StepCall(request), ["output_ids", "output_log_probs", "cum_log_probs"])
    assert tensors["output_log_probs"].tolist() == [[[-0.5, -0.25]]]
    assert tensors["cum_log_probs"].tolist() == [[-0.75]]


def test_include_input() -> None:
    request = StepRequest("r", (1, 2), 2)
    result = StepResult((3, 4))
    call = StepCall(request, include_input=True)
    tensors = encode_result(result, call, ["output_ids", "sequence_length"])
    assert tensors["output_ids"].tolist() == [[[1, 2, 3, 4]]]
    assert tensors["sequence_length"].tolist() == [[4]]


def test_lengths_that_count_the_input_or_leave_padding() -> None:
    request = StepRequest("r", (1, 2), 3)
    ids = np.array([[[7, 8, 9]]], np.int32)
    counted = {"output_ids": ids, "sequence_length": np.array([[5]], np.int32)}
    assert decode_result(counted, request).output_ids == (7, 8, 9)
    padded = {"output_ids": ids, "sequence_length": np.array([[1]], np.int32)}
    assert decode_result(padded, request).output_ids == (7,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_ids": None}, "sent no output_ids"),
        ({"sequence_length": np.array([[9]], np.int32)}, "sequence_length = 9: output_ids holds 1 tokens"),
        ({"output_ids": np.array([[[1, 2, 3]]], np.int32), "sequence_length": np.array([[3]], np.int32)}, "was 2"),
        ({"total_draft_tokens": np.array([[2]], np.int32)}, "total_draft_tokens = 2: 1 drafts were sent"),
        ({"generation_logits": None}, "sent no generation_logits"),
        ({"generation_logits": np.zeros((1, 2, 1, 4), np.float32)}, r"generation_logits = shape \[1, 2, 1, 4\]"),
        ({"output_log_probs": None}, "sent no output_log_probs for 1 tokens"),
        ({"output_log_probs": np.zeros((1, 1, 0), np.float32)}, "sent 0 output_log_probs for 1 tokens"),
        ({"specdec_step_stats": np.zeros((1, 3))}, "specdec_step_stats = 3 values"),
        ({"specdec_step_stats": np.array([[1.0, 2, 0, 0, 0, 0, 0, 0]])}, "total_accepted_draft_tokens = 2"),
    ],
)
def test_answers_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    request = StepRequest("r", (4,), 2, (5,), return_logits=True, return_log_probs=True)
    tensors = {
        "output_ids": np.array([[[5]]], np.int32),
        "sequence_length": np.array([[1]], np.int32),
        "generation_logits": np.zeros((1, 1, 1, 4), np.float32),
        "output_log_probs": np.zeros((1, 1, 1), np.float32),
        **changes,
    }
    with pytest.raises(StepError, match=message):
        decode_result({name: array for name, array in tensors.items() if array is not None}, request)


def test_answer_to_a_stop() -> None:
    tensors = encode_stopped()
    assert tensors["output_ids"].shape == (1, 1, 0) and tensors["sequence_length"].item() == 0
