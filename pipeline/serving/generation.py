"""GenerationRequest from named tensors, Chunk to named tensors: the outer edge of `spec_decode`.

Names and types: NVIDIA TensorRT-LLM 1.2, Triton model `tensorrt_llm_bls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.request import DEFAULT_MAX_TOKENS, Chunk, GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.serving.contract import CHAT_PARAMETER, RULE_PARAMETER, SPEC_DECODE, Array, Tensors

# "id" is the request's id, which the HTTP front end leaves among the parameters too.
_OTHER_PARAMETERS = ("id",)


def decode_generation(
    tensors: Mapping[str, Array], parameters: Mapping[str, Any], request_id: str
) -> GenerationRequest:
    """The request that a client sent. Absent inputs take the defaults of GenerationRequest.

    Over HTTP `generate`, a JSON key that is no input becomes a request parameter, so unknown parameters are
    refused here as Triton refuses unknown inputs.

    Raises:
        InvalidRequestError: naming the input, its value and its limit.
    """
    if "text_input" not in tensors:  # Triton counts mandatory inputs, it does not look for them
        raise InvalidRequestError("text_input", None, "must be given")
    _refuse_unsupported(tensors, parameters)
    return GenerationRequest(
        text_input="".join(_text(tensors, "text_input")),
        max_tokens=int(_value(tensors, "max_tokens", DEFAULT_MAX_TOKENS)),
        sampling=_sampling(tensors),
        seed=_value(tensors, "seed", None),
        stop_words=_text(tensors, "stop_words"),
        end_id=_value(tensors, "end_id", None),
        stream=_value(tensors, "stream", False),
        exclude_input_in_output=_value(tensors, "exclude_input_in_output", False),
        return_perf_metrics=_value(tensors, "return_perf_metrics", False),
        num_draft_tokens=_value(tensors, "num_draft_tokens", None),
        acceptance_rule=_parameter(parameters, RULE_PARAMETER, "auto"),
        chat=_parameter(parameters, CHAT_PARAMETER, False),
        request_id=request_id,
    )


def encode_chunk(chunk: Chunk) -> Tensors:
    """Output tensors of a chunk; the reason, the statistics and NVIDIA's sums are on the last one only."""
    tensors: Tensors = {
        "text_output": _strings(chunk.text),
        "token_ids": _shaped(np.array(chunk.token_ids, np.int32)),
    }
    if chunk.round is not None:
        tensors["spec_decode_round"] = _strings(chunk.round.to_json())
    if chunk.finish_reason is not None:
        tensors["finish_reason"] = _strings(chunk.finish_reason)
    if chunk.statistics is not None:
        statistics = chunk.statistics
        tensors["spec_decode_stats"] = _strings(statistics.to_json())
        tensors["acceptance_rate"] = _shaped(np.array([statistics.draft_acceptance_rate], np.float32))
        tensors["total_accepted_draft_tokens"] = _shaped(np.array([statistics.num_accepted_draft_tokens], np.int32))
        tensors["total_draft_tokens"] = _shaped(np.array([statistics.num_draft_tokens], np.int32))
    return tensors


def _shaped(values: Array) -> Array:
    return values.reshape(*SPEC_DECODE.batch_dims, -1)


def _strings(text: str) -> Array:
    return _shaped(np.array([text.encode()], np.object_))


def _refuse_unsupported(tensors: Mapping[str, Array], parameters: Mapping[str, Any]) -> None:
    minimum = _value(tensors, "min_length", 0)
    if minimum > 0:
        raise InvalidRequestError("min_length", minimum, "a minimum length is not supported; leave it out or send 0")
    for text in _text(tensors, "sampling_parameters"):
        if text.strip() not in ("", "{}", "null"):
            raise InvalidRequestError(
                "sampling_parameters", text[:80], "not supported; send temperature, top_k, top_p, seed as inputs"
            )
    for name, value in parameters.items():
        known = name in (RULE_PARAMETER, CHAT_PARAMETER, *_OTHER_PARAMETERS)
        if not known and not name.startswith("triton_"):
            inputs = ", ".join(spec.name for spec in SPEC_DECODE.inputs)
            raise InvalidRequestError(
                name,
                value,
                f"not supported; inputs are {inputs}; parameters are {RULE_PARAMETER}, {CHAT_PARAMETER}",
            )


def _value(tensors: Mapping[str, Array], name: str, absent: Any) -> Any:
    values = tensors.get(name)
    if values is None:
        return absent
    if values.size != 1:
        raise InvalidRequestError(name, f"shape {list(values.shape)}", "must hold one value")
    return values.reshape(-1)[0].item()


def _text(tensors: Mapping[str, Array], name: str) -> tuple[str, ...]:
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


def _sampling(tensors: Mapping[str, Array]) -> SamplingParams:
    top_k = int(_value(tensors, "top_k", 0))
    top_p = float(_value(tensors, "top_p", 1.0))
    # Without a temperature the answer is greedy, unless top_k or top_p ask for sampling: then it is
    # NVIDIA's 1.0, since a greedy answer would ignore them.
    samples = top_k > 1 or top_p < 1.0
    temperature = float(_value(tensors, "temperature", 1.0 if samples else 0.0))
    return SamplingParams(temperature, top_k, top_p)


def _parameter(parameters: Mapping[str, Any], name: str, absent: Any) -> Any:
    value = parameters.get(name, absent)
    if type(value) is not type(absent):
        kind = "true or false" if isinstance(absent, bool) else "a text"
        raise InvalidRequestError(name, value, f"must be {kind}")
    return value
