"""What NVIDIA's `tensorrt_llm_bls` takes and this server does not: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import InvalidRequestError
from pipeline.serving.contract import (
    CHAT_PARAMETER,
    PRIORITY_PARAMETERS,
    RULE_PARAMETER,
    SPEC_DECODE,
    STREAM_TOKENS_PARAMETER,
    TIMEOUT_PARAMETER,
    UNSUPPORTED_INPUTS,
    Array,
)

PARAMETERS = (RULE_PARAMETER, CHAT_PARAMETER, STREAM_TOKENS_PARAMETER, TIMEOUT_PARAMETER, *PRIORITY_PARAMETERS)
# "id" is the request's id, which the HTTP front end leaves among the parameters too.
_OTHER_PARAMETERS = ("id",)

_FEATURES = {
    "decoder_": "encoder-decoder models",
    "image_": "images",
    "video_": "videos",
    "prompt_": "prompt tables",
    "lora_": "LoRA adapters",
    "guided_decoding_": "guided decoding",
}
# Inputs of one value, and the values that ask for nothing.
_ONLY: dict[str, tuple[tuple[float, ...], str]] = {
    "beam_width": ((1,), "must be 1: beam search is not offered"),
    "length_penalty": ((0.0, 1.0), "acts in beam search alone, which is not offered; leave it out"),
    "return_context_logits": ((0,), "logits are not returned; return_log_probs gives log-probabilities"),
    "return_generation_logits": ((0,), "logits are not returned; return_log_probs gives log-probabilities"),
}


def refuse_unsupported(tensors: Mapping[str, Array], parameters: Mapping[str, Any]) -> None:
    """Refuse inputs and parameters that would have to be ignored.

    Over HTTP `generate`, a JSON key that is no input becomes a request parameter, so unknown parameters are
    refused here as Triton refuses unknown inputs.

    Raises:
        InvalidRequestError: naming the first of them, its value, and what is offered.
    """
    for spec in UNSUPPORTED_INPUTS:
        if spec.name in tensors and tensors[spec.name].size:
            feature = next(text for prefix, text in _FEATURES.items() if spec.name.startswith(prefix))
            raise InvalidRequestError(spec.name, _shown(tensors[spec.name]), f"not supported: {feature}; leave it out")
    for name, (allowed, limit) in _ONLY.items():
        for value in tensors[name].reshape(-1).tolist() if name in tensors else ():
            if value not in allowed:
                raise InvalidRequestError(name, value, limit)
    for item in tensors["sampling_parameters"].reshape(-1).tolist() if "sampling_parameters" in tensors else ():
        text = item.decode(errors="replace") if isinstance(item, bytes) else str(item)
        if text.strip() not in ("", "{}", "null"):
            raise InvalidRequestError(
                "sampling_parameters", text[:80], "not supported; send temperature, top_k, top_p, seed as inputs"
            )
    for name, value in parameters.items():
        if name not in (*PARAMETERS, *_OTHER_PARAMETERS) and not name.startswith("triton_"):
            unsupported = {spec.name for spec in UNSUPPORTED_INPUTS}
            inputs = ", ".join(spec.name for spec in SPEC_DECODE.inputs if spec.name not in unsupported)
            raise InvalidRequestError(
                name, value, f"not supported; inputs are {inputs}; parameters are {', '.join(PARAMETERS)}"
            )


def _shown(values: Array) -> Any:
    """The value of a small input, the shape of a large one."""
    if values.size > 1:
        return f"shape {list(values.shape)}"
    item = values.reshape(-1)[0]
    return item[:80].decode(errors="replace") if isinstance(item, bytes) else item.item()
