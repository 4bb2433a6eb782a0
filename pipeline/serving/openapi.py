"""The OpenAPI description of `/v2/models/spec_decode/generate`, made from the tensor contract.

`python -m pipeline.serving.openapi` writes docs/openapi.json.
"""

from __future__ import annotations

import json
from typing import Any

from pipeline.orchestrator.request import (
    DEFAULT_MAX_TOKENS,
    MAX_BIAS_WORDS,
    MAX_RETURN_SEQUENCES,
    MAX_WORD_CHARS,
    MAX_WORDS,
    STREAM_TOKENS,
)
from pipeline.sampling.params import (
    MAX_BIAS,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    MIN_REPETITION_PENALTY,
)
from pipeline.sampling.rules import RULE_AUTO, RULES
from pipeline.serving.contract import (
    CHAT_PARAMETER,
    RULE_PARAMETER,
    SPEC_DECODE,
    STREAM_TOKENS_PARAMETER,
    UNSUPPORTED_INPUTS,
    TensorSpec,
)
from pipeline.spec import ROOT

PATH = ROOT / "docs" / "openapi.json"
Schema = dict[str, Any]

_TYPES: dict[str, Schema] = {
    "STRING": {"type": "string"},
    "BOOL": {"type": "boolean"},
    "INT32": {"type": "integer", "format": "int32"},
    "UINT64": {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
    "FP32": {"type": "number", "format": "float"},
}
_WORD = {"minLength": 1, "maxLength": MAX_WORD_CHARS}
_LIMITS: dict[str, Schema] = {
    "text_input": {"minLength": 1},
    "max_tokens": {"minimum": 1, "default": DEFAULT_MAX_TOKENS},
    "min_tokens": {"minimum": 0},
    "temperature": {"minimum": 0, "maximum": MAX_TEMPERATURE},
    "top_k": {"minimum": 0},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "min_p": {"minimum": 0, "maximum": 1},
    "repetition_penalty": {"minimum": round(MIN_REPETITION_PENALTY, 6), "maximum": MAX_REPETITION_PENALTY},
    "presence_penalty": {"minimum": -MAX_PENALTY, "maximum": MAX_PENALTY},
    "frequency_penalty": {"minimum": -MAX_PENALTY, "maximum": MAX_PENALTY},
    "end_id": {"minimum": -1},
    "num_return_sequences": {"minimum": 1, "maximum": MAX_RETURN_SEQUENCES},
    "num_draft_tokens": {"minimum": 0},
    "beam_width": {"const": 1},
}
_LISTS: dict[str, Schema] = {
    "stop_words": {"maxItems": MAX_WORDS, "items": _WORD},
    "bad_words": {"maxItems": MAX_WORDS, "items": _WORD},
    "embedding_bias_words": {"maxItems": MAX_BIAS_WORDS, "items": _WORD},
    "embedding_bias_weights": {"maxItems": MAX_BIAS_WORDS, "items": {"minimum": -MAX_BIAS, "maximum": MAX_BIAS}},
}
# Taken so that their users are told what is offered instead: docs/errors.md.
_HIDDEN = {"length_penalty", "return_context_logits", "return_generation_logits", "sampling_parameters"}


def describe() -> Schema:
    """The document."""
    refused = {spec.name for spec in UNSUPPORTED_INPUTS} | _HIDDEN
    inputs = {spec.name: _input(spec) for spec in SPEC_DECODE.inputs if spec.name not in refused}
    parameters: Schema = {
        RULE_PARAMETER: {"type": "string", "enum": [RULE_AUTO, *RULES]},
        CHAT_PARAMETER: {"type": "boolean"},
        STREAM_TOKENS_PARAMETER: {"type": "string", "enum": list(STREAM_TOKENS)},
        "id": {"type": "string"},
    }
    schemas = {
        "Request": {
            "type": "object",
            "required": [spec.name for spec in SPEC_DECODE.inputs if not spec.optional],
            "properties": {**inputs, **parameters},
            "additionalProperties": False,
        },
        "Response": {"type": "object", "properties": {spec.name: _output(spec) for spec in SPEC_DECODE.outputs}},
        "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "spec_decode", "version": "2"},
        "servers": [{"url": "http://127.0.0.1:8000"}],
        "paths": {
            "/v2/models/spec_decode/generate": _post("One answer; `stream` must be false.", "application/json"),
            "/v2/models/spec_decode/generate_stream": _post("An event per round.", "text/event-stream"),
        },
        "components": {"schemas": schemas},
    }


def _input(spec: TensorSpec) -> Schema:
    kind = _TYPES[spec.kind]
    if spec.dims == (-1,):
        limits = _LISTS[spec.name]
        return {"type": "array", **limits, "items": {**kind, **limits["items"]}}
    return {**kind, **_LIMITS.get(spec.name, {})}


def _output(spec: TensorSpec) -> Schema:
    """Triton sends one value as it is, and several as a list."""
    kind = _TYPES[spec.kind]
    return kind if spec.dims == (1,) else {"anyOf": [kind, {"type": "array", "items": kind}]}


def _post(summary: str, media: str) -> Schema:
    def content(kind: str, name: str) -> Schema:
        return {"content": {kind: {"schema": {"$ref": f"#/components/schemas/{name}"}}}}

    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, **content("application/json", "Request")},
            "responses": {
                "200": {"description": "the answer", **content(media, "Response")},
                "400": {"description": "refused: docs/errors.md", **content("application/json", "Error")},
                "500": {"description": "no JSON of these types, or a fault", **content("application/json", "Error")},
            },
        }
    }


def main() -> None:
    PATH.write_text(json.dumps(describe(), indent=2) + "\n")


if __name__ == "__main__":
    main()
