"""StepRequest as named tensors, both ways, for the BLS adapter and the step server.

Meaning of the tensors: NVIDIA TensorRT-LLM 1.2, Triton backend `tensorrtllm`, model `tensorrt_llm`. Arrays
have a leading batch dimension of 1; where `reshape` has taken the last dimension away, a scalar arrives as
[1].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.engine.step import FloatArray, StepRequest
from pipeline.errors import InvalidRequestError
from pipeline.sampling.processors import check_tokens
from pipeline.sampling.rules import RULE_AUTO
from pipeline.serving.contract import (
    ARRIVAL_PARAMETER,
    CONTINUES_PARAMETER,
    PERF_OUTPUTS,
    PRIORITY_PARAMETER,
    RULE_PARAMETER,
    STEP_STATS,
    Array,
    Tensors,
)
from pipeline.serving.dialect import OWN, Dialect
from pipeline.serving.sampling_tensors import decode_sampling, encode_sampling, scalar_of

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class StepCall:
    """A decoded step request.

    Attributes:
        request: what to compute.
        include_input: put the input before the new tokens in `output_ids`.
        perf_metrics: send NVIDIA's counters.
    """

    request: StepRequest
    include_input: bool = False
    perf_metrics: bool = False


@dataclass(frozen=True)
class EncodedCall:
    """A step request on its way to Triton.

    Attributes:
        tensors: inputs by name.
        parameters: request parameters.
        outputs: names of the outputs to ask for.
    """

    tensors: Tensors
    parameters: dict[str, str | int | bool]
    outputs: tuple[str, ...]


def encode_request(request: StepRequest, dialect: Dialect = OWN) -> EncodedCall:
    """A call as tensors. Beyond `encode_sampling`'s, only what is asked for crosses.

    Args:
        request: the call.
        dialect: of the engine. Ours is asked for STEP_STATS, which holds every counter; others for NVIDIA's counters,
            since they refuse names that they do not know.

    Raises:
        InvalidRequestError: draft_logits do not fit the drafts, a number does not fit its tensor, or the engine cannot
            apply an option.
    """
    _check(request)
    if not dialect.own_tensors and dialect.vocab_size is not None:
        check_tokens(request.sampling, None, dialect.vocab_size)  # an end_id among the padding does no harm
    tensors: Tensors = {
        "input_ids": row(request.input_ids),
        "input_lengths": row([len(request.input_ids)]),
        "request_output_len": row([request.max_new_tokens]),
        # Always explicit: NVIDIA's default is a parameter of the model.
        "exclude_input_in_output": np.array([[True]]),
        **encode_sampling(request.sampling, dialect),
    }
    if not request.sampling.greedy:
        tensors["seed"] = np.array([[request.seed]], np.uint64)
    if request.draft_ids:
        tensors["draft_input_ids"] = row(request.draft_ids)
        if request.draft_logits is not None:
            tensors["draft_logits"] = np.ascontiguousarray(request.draft_logits, np.float32)[None]
    if request.end_id is not None:
        tensors["end_id"] = row([request.end_id])
    # NVIDIA's engines write at the end token's place, also where there is none.
    if request.min_tokens and (dialect.own_tensors or request.end_id is not None):
        tensors["min_tokens"] = row([request.min_tokens])
    outputs: tuple[str, ...] = ("output_ids",)
    if request.return_logits:
        tensors["return_generation_logits"] = np.array([[True]])
        outputs += ("generation_logits",)
    if request.return_log_probs:
        tensors["return_log_probs"] = np.array([[True]])
        outputs += ("output_log_probs",)
    if dialect.own_tensors:
        parameters: dict[str, str | int | bool] = {RULE_PARAMETER: request.rule, ARRIVAL_PARAMETER: request.arrival}
        if request.priority:
            parameters[PRIORITY_PARAMETER] = request.priority
        if request.continues:
            parameters[CONTINUES_PARAMETER] = True
        return EncodedCall(tensors, parameters, (*outputs, STEP_STATS))
    tensors["return_perf_metrics"] = np.array([[True]])
    return EncodedCall(tensors, {}, (*outputs, "sequence_length", *PERF_OUTPUTS))


def encode_stop() -> EncodedCall:
    """A stop call; its request id says which call to stop. Lengths are mandatory and unused."""
    tensors: Tensors = {
        "input_ids": row([0]),
        "input_lengths": row([1]),
        "request_output_len": row([1]),
        "stop": np.array([[True]]),
    }
    return EncodedCall(tensors, {}, ("output_ids", "sequence_length"))


def is_stop(tensors: Mapping[str, Array]) -> bool:
    return bool(scalar_of(tensors, "stop", False))


def decode_request(tensors: Mapping[str, Array], parameters: Mapping[str, Any], request_id: str) -> StepCall:
    """The step request that named tensors describe. Absent sampling inputs mean greedy, as NVIDIA's do.

    Raises:
        InvalidRequestError: naming the tensor, its value and its limit.
    """
    for name in ("input_ids", "input_lengths", "request_output_len"):
        if name not in tensors:  # Triton counts mandatory inputs, it does not look for them
            raise InvalidRequestError(name, None, "must be given")
    input_ids = _ids(tensors, "input_ids")
    length = int(scalar_of(tensors, "input_lengths", -1))
    if length != len(input_ids):
        raise InvalidRequestError("input_lengths", length, f"input_ids holds {len(input_ids)} tokens")
    request = StepRequest(
        request_id=request_id,
        input_ids=input_ids,
        max_new_tokens=int(scalar_of(tensors, "request_output_len", 0)),
        draft_ids=_ids(tensors, "draft_input_ids"),
        draft_logits=_draft_logits(tensors),
        sampling=decode_sampling(tensors),
        seed=int(scalar_of(tensors, "seed", 0)),
        end_id=int(scalar_of(tensors, "end_id", 0)) if "end_id" in tensors else None,
        min_tokens=int(scalar_of(tensors, "min_tokens", 0)),
        rule=_parameter(parameters, RULE_PARAMETER, RULE_AUTO),
        return_logits=bool(scalar_of(tensors, "return_generation_logits", False)),
        return_log_probs=bool(scalar_of(tensors, "return_log_probs", False)),
        arrival=_parameter(parameters, ARRIVAL_PARAMETER, 0),
        priority=_parameter(parameters, PRIORITY_PARAMETER, 0),
        continues=_parameter(parameters, CONTINUES_PARAMETER, False),
    )
    _check(request)
    return StepCall(
        request,
        include_input=not scalar_of(tensors, "exclude_input_in_output", False),
        perf_metrics=bool(scalar_of(tensors, "return_perf_metrics", False)),
    )


def row(values: Any) -> Array:
    """[1, n] INT32."""
    return np.array([values], np.int32)


def _check(request: StepRequest) -> None:
    if not request.input_ids:
        raise InvalidRequestError("input_ids", [], "must hold at least one token")
    if not 1 <= request.max_new_tokens <= _INT32_MAX:
        raise InvalidRequestError("request_output_len", request.max_new_tokens, "must be at least 1")
    if not 0 <= request.seed < 1 << 64:
        raise InvalidRequestError("seed", request.seed, "must fit an unsigned 64-bit integer")
    if not 0 <= request.min_tokens <= _INT32_MAX:
        raise InvalidRequestError("min_tokens", request.min_tokens, "must be 0 or more")
    if request.priority < 0:
        raise InvalidRequestError(PRIORITY_PARAMETER, request.priority, "must be 0 or more")
    logits, drafts = request.draft_logits, len(request.draft_ids)
    if drafts and request.max_new_tokens != drafts + 1:
        raise InvalidRequestError(
            "request_output_len", request.max_new_tokens, f"must be K + 1 = {drafts + 1} with K = {drafts} drafts"
        )
    if logits is not None and (logits.ndim != 2 or logits.shape[0] != drafts):
        raise InvalidRequestError(
            "draft_logits", f"shape {list(logits.shape)}", f"must be [K, vocab] with K = {drafts} drafts"
        )


def _ids(tensors: Mapping[str, Array], name: str) -> tuple[int, ...]:
    values = tensors.get(name)
    if values is None:
        return ()
    if values.ndim != 2 or values.shape[0] != 1:
        raise InvalidRequestError(name, f"shape {list(values.shape)}", "must be [1, n]: one sequence per request")
    ids: list[int] = values[0].tolist()
    if ids and min(ids) < 0:
        raise InvalidRequestError(name, min(ids), "token ids are 0 or more")
    return tuple(ids)


def _draft_logits(tensors: Mapping[str, Array]) -> FloatArray | None:
    values = tensors.get("draft_logits")
    if values is None:
        return None
    if values.ndim != 3 or values.shape[0] != 1:
        raise InvalidRequestError("draft_logits", f"shape {list(values.shape)}", "must be [1, K, vocab]")
    if values.dtype != np.float32:
        raise InvalidRequestError("draft_logits", str(values.dtype), "must be float32")
    logits: FloatArray = values[0]
    return logits


def _parameter(parameters: Mapping[str, Any], name: str, absent: Any) -> Any:
    value = parameters.get(name, absent)
    if type(value) is not type(absent):
        raise InvalidRequestError(name, value, f"must be of type {type(absent).__name__}")
    return value
