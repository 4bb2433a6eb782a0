"""GenerationRequest and Chunk as named tensors: the outer edge of `spec_decode`, both ways.

Names and types: NVIDIA TensorRT-LLM 1.2, Triton model `tensorrt_llm_bls`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.request import DEFAULT_MAX_TOKENS, EACH_ROUND, Chunk, GenerationRequest
from pipeline.sampling.params import PENALTIES, TRUNCATIONS, SamplingParams
from pipeline.serving.contract import (
    CHAT_PARAMETER,
    PRIORITY_PARAMETERS,
    RULE_PARAMETER,
    SPEC_DECODE,
    STREAM_TOKENS_PARAMETER,
    TIMEOUT_PARAMETER,
    Array,
    Tensors,
)
from pipeline.serving.refusals import refuse_unsupported

# Inputs that hold a number each, by the field of SamplingParams they fill.
SAMPLING_INPUTS = (*TRUNCATIONS, *PENALTIES)
_SAMPLING_TYPES = {"top_k": int}
_FLAGS = ("stream", "exclude_input_in_output", "return_log_probs", "return_perf_metrics")


def decode_generation(
    tensors: Mapping[str, Array], parameters: Mapping[str, Any], request_id: str
) -> GenerationRequest:
    """The request that a client sent. Absent inputs take the defaults of GenerationRequest.

    Raises:
        InvalidRequestError: naming the input, its value and its limit.
    """
    if "text_input" not in tensors:  # Triton counts mandatory inputs, it does not look for them
        raise InvalidRequestError("text_input", None, "must be given")
    refuse_unsupported(tensors, parameters)
    return GenerationRequest(
        text_input="".join(text_values(tensors, "text_input")),
        max_tokens=int(one_value(tensors, "max_tokens", DEFAULT_MAX_TOKENS)),
        min_tokens=_min_tokens(tensors),
        sampling=_sampling(tensors),
        embedding_bias=_bias(tensors),
        bad_words=text_values(tensors, "bad_words"),
        stop_words=text_values(tensors, "stop_words"),
        end_id=one_value(tensors, "end_id", None),
        seed=one_value(tensors, "seed", None),
        num_return_sequences=one_value(tensors, "num_return_sequences", 1),
        num_draft_tokens=one_value(tensors, "num_draft_tokens", None),
        acceptance_rule=_parameter(parameters, RULE_PARAMETER, "auto"),
        chat=_parameter(parameters, CHAT_PARAMETER, False),
        stream_tokens=_parameter(parameters, STREAM_TOKENS_PARAMETER, EACH_ROUND),
        timeout=timeout_of(parameters),
        priority=priority_of(parameters),
        request_id=request_id,
        on_round=None,
        **{name: bool(one_value(tensors, name, False)) for name in _FLAGS},
    )


def timeout_of(parameters: Mapping[str, Any]) -> int:
    """Microseconds that a request may take; 0: any time.

    Raises:
        InvalidRequestError: it is no such number.
    """
    timeout: int = _parameter(parameters, TIMEOUT_PARAMETER, 0)
    if timeout < 0:
        raise InvalidRequestError(TIMEOUT_PARAMETER, timeout, "must be 0 (none) or more microseconds")
    return timeout


def priority_of(parameters: Mapping[str, Any]) -> int:
    """The level that a request asks for; 0: the deployment's default.

    Raises:
        InvalidRequestError: it is no whole number, or two that differ.
    """
    levels = {name: _parameter(parameters, name, 0) for name in PRIORITY_PARAMETERS if name in parameters}
    if len(set(levels.values())) > 1:
        first, second = PRIORITY_PARAMETERS
        raise InvalidRequestError(first, levels[first], f"is another name of {second}, which is {levels[second]}")
    return next(iter(levels.values()), 0)


def encode_generation(request: GenerationRequest) -> tuple[Tensors, dict[str, str | bool | int]]:
    """Inputs and parameters that `decode_generation` reads as `request`; defaults are left out.

    Raises:
        InvalidRequestError: the request holds token ids where `spec_decode` takes words.
    """
    sampling = request.sampling
    for name, value in (("logit_bias", sampling.logit_bias), ("bad_words", sampling.bad_words)):
        if value:
            raise InvalidRequestError(name, value, "a server takes words, not token ids")
    values: dict[str, list[Any]] = {
        "text_input": [request.text_input],
        "max_tokens": [request.max_tokens],
        "temperature": [sampling.temperature],  # absent, top_p would turn sampling on
    }
    defaults = {spec.name: spec.default for spec in fields(GenerationRequest)}
    for name in ("min_tokens", "end_id", "seed", "num_return_sequences", "num_draft_tokens", *_FLAGS):
        if getattr(request, name) != defaults[name]:
            values[name] = [getattr(request, name)]
    off = SamplingParams()
    for name in SAMPLING_INPUTS[1:]:
        if getattr(sampling, name) != getattr(off, name):
            values[name] = [getattr(sampling, name)]
    for name, words in (("stop_words", request.stop_words), ("bad_words", request.bad_words)):
        if words:
            values[name] = list(words)
    if request.embedding_bias:
        values["embedding_bias_words"] = [word for word, _ in request.embedding_bias]
        values["embedding_bias_weights"] = [weight for _, weight in request.embedding_bias]
    parameters: dict[str, str | bool | int] = {}
    for parameter, field in (
        (RULE_PARAMETER, "acceptance_rule"),
        (CHAT_PARAMETER, "chat"),
        (STREAM_TOKENS_PARAMETER, "stream_tokens"),
        (TIMEOUT_PARAMETER, "timeout"),
        (PRIORITY_PARAMETERS[0], "priority"),
    ):
        if getattr(request, field) != defaults[field]:
            parameters[parameter] = getattr(request, field)
    return {name: _input(name, items) for name, items in values.items()}, parameters


def encode_chunk(chunk: Chunk) -> Tensors:
    """Output tensors of one chunk of a stream."""
    return encode_chunks([chunk])


def encode_chunks(chunks: Sequence[Chunk]) -> Tensors:
    """Output tensors of chunks that leave together: one of a stream, or the answers of a request that does not.

    token_ids and output_log_probs are [answers, longest], shorter rows filled with -1 and 0. The reason, the
    statistics and NVIDIA's sums are on the last chunks only; sums are over all answers in `chunks`.
    """
    tensors: Tensors = {
        "text_output": _strings([chunk.text for chunk in chunks]),
        "token_ids": _rows([chunk.token_ids for chunk in chunks], -1, np.int32),
    }
    if len(chunks) == 1:
        tensors["sequence_index"] = _numbers([chunks[0].sequence_index], np.int32)
    sums = [chunk.cum_log_prob for chunk in chunks if chunk.cum_log_prob is not None]
    if sums:
        tensors["output_log_probs"] = _rows([chunk.log_probs for chunk in chunks], 0.0, np.float32)
        tensors["cum_log_probs"] = _numbers(sums, np.float32)
    if chunks[0].round is not None:
        tensors["spec_decode_round"] = _strings([chunks[0].round.to_json()])
    reasons = [chunk.finish_reason for chunk in chunks if chunk.finish_reason is not None]
    if reasons:
        tensors["finish_reason"] = _strings(reasons)
    statistics = [chunk.statistics for chunk in chunks if chunk.statistics is not None]
    if statistics:
        drafted = sum(part.num_draft_tokens for part in statistics)
        accepted = sum(part.num_accepted_draft_tokens for part in statistics)
        tensors["spec_decode_stats"] = _strings([part.to_json() for part in statistics])
        tensors["num_input_tokens"] = _numbers([statistics[0].prompt_tokens], np.int32)
        tensors["num_output_tokens"] = _numbers([sum(part.committed_tokens for part in statistics)], np.int32)
        tensors["acceptance_rate"] = _numbers([accepted / drafted if drafted else 0.0], np.float32)
        tensors["total_accepted_draft_tokens"] = _numbers([accepted], np.int32)
        tensors["total_draft_tokens"] = _numbers([drafted], np.int32)
    return tensors


def one_value(tensors: Mapping[str, Array], name: str, absent: Any) -> Any:
    """The number or flag that an input holds.

    Raises:
        InvalidRequestError: it holds several.
    """
    values = tensors.get(name)
    if values is None:
        return absent
    if values.size != 1:
        raise InvalidRequestError(name, f"shape {list(values.shape)}", "must hold one value")
    return values.reshape(-1)[0].item()


def text_values(tensors: Mapping[str, Array], name: str) -> tuple[str, ...]:
    """The texts that an input holds, () where it is absent.

    Raises:
        InvalidRequestError: one is not UTF-8.
    """
    values = tensors.get(name)
    if values is None:
        return ()
    texts = []
    for item in values.reshape(-1).tolist():
        try:
            texts.append(item.decode() if isinstance(item, bytes) else str(item))
        except UnicodeDecodeError as error:
            raise InvalidRequestError(name, item[:32], f"must be UTF-8; byte {error.start} is not") from None
    return tuple(texts)


def _min_tokens(tensors: Mapping[str, Array]) -> int:
    """`min_tokens`, or `min_length` as older releases and genai-perf call it."""
    old, new = (one_value(tensors, name, None) for name in ("min_length", "min_tokens"))
    if old is not None and new is not None and old != new:
        raise InvalidRequestError("min_length", old, f"is another name of min_tokens, which is {new}")
    if old is not None and old < 0:
        raise InvalidRequestError("min_length", old, "must be 0 or more")
    return int(old if new is None else new) if (old, new) != (None, None) else 0


def _bias(tensors: Mapping[str, Array]) -> tuple[tuple[str, float], ...]:
    words = text_values(tensors, "embedding_bias_words")
    weights = tensors.get("embedding_bias_weights")
    numbers = [] if weights is None else weights.reshape(-1).tolist()
    if len(words) != len(numbers):
        raise InvalidRequestError(
            "embedding_bias_weights", f"{len(numbers)} weights", f"embedding_bias_words holds {len(words)} words"
        )
    return tuple(zip(words, numbers, strict=True))


def _sampling(tensors: Mapping[str, Array]) -> SamplingParams:
    given: dict[str, Any] = {
        name: _SAMPLING_TYPES.get(name, float)(one_value(tensors, name, None))
        for name in SAMPLING_INPUTS
        if name in tensors
    }
    # Without a temperature the answer is greedy, unless another option asks for sampling: then it is
    # NVIDIA's 1.0, since a greedy answer would ignore it.
    samples = given.get("top_k", 0) > 1 or given.get("top_p", 1.0) < 1.0 or given.get("min_p", 0.0) > 0.0
    given.setdefault("temperature", 1.0 if samples else 0.0)
    return SamplingParams(**given)


def _parameter(parameters: Mapping[str, Any], name: str, absent: Any) -> Any:
    value = parameters.get(name, absent)
    if type(value) is not type(absent):
        kind = {bool: "true or false", int: "a whole number"}.get(type(absent), "a text")
        raise InvalidRequestError(name, value, f"must be {kind}")
    return value


def _input(name: str, items: Sequence[Any]) -> Array:
    spec = SPEC_DECODE.input(name)
    if issubclass(spec.dtype, np.integer):
        limits = np.iinfo(spec.dtype)
        for item in items:
            if not limits.min <= item <= limits.max:
                raise InvalidRequestError(name, item, f"must fit {spec.kind}")
    return _numbers([item.encode() for item in items] if spec.kind == "STRING" else items, spec.dtype)


def _numbers(values: Sequence[Any], dtype: Any) -> Array:
    """[1, n]."""
    return np.array(values, dtype).reshape(*SPEC_DECODE.batch_dims, -1)


def _strings(texts: Sequence[str]) -> Array:
    return _numbers([text.encode() for text in texts], np.object_)


def _rows(rows: Sequence[Sequence[Any]], fill: float, dtype: Any) -> Array:
    """[1, rows, longest]."""
    filled = np.full((len(rows), max(len(row) for row in rows)), fill, dtype)
    for i, row in enumerate(rows):
        filled[i, : len(row)] = row
    return filled.reshape(*SPEC_DECODE.batch_dims, *filled.shape)
