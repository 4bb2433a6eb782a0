"""What is not offered, parameters, and requests that are no requests."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.served.error_case import (
    GENERATE,
    IN_STREAM,
    INVALID,
    ErrorCase,
    Grpc,
    Http,
    Refusal,
    both,
    json_body,
    over_grpc,
    over_http,
    tensors,
)

FEATURES = "Not offered"
PARAMETERS = "Parameters"
MODELS = "Models and endpoints"
FORM = "HTTP bodies"


def _nested(depth: int) -> bytes:
    return b'{"text_input": ' + b"[" * depth + b"]" * depth + b"}"


FEATURE_CASES = (
    both(FEATURES, "`beam_width` above 1", "beam_width = 2: must be 1: beam search is not offered", beam_width=2),
    both(FEATURES, "`beam_width` 0", "beam_width = 0: must be 1: beam search is not offered", beam_width=0),
    both(FEATURES, "`length_penalty`", "length_penalty = 3.0: acts in beam search alone", length_penalty=3.0),
    both(
        FEATURES,
        "`return_context_logits`",
        "logits are not returned; return_log_probs gives",
        return_context_logits=True,
    ),
    both(
        FEATURES,
        "`return_generation_logits`",
        "logits are not returned; return_log_probs gives",
        return_generation_logits=True,
    ),
    both(
        FEATURES,
        "guided decoding",
        "guided_decoding_guide = '{}': not supported: guided decoding",
        guided_decoding_guide="{}",
    ),
    both(FEATURES, "`guided_decoding_guide_type`", "not supported: guided decoding", guided_decoding_guide_type="json"),
    over_grpc(
        FEATURES,
        "LoRA by id",
        "lora_task_id = 1: not supported: LoRA adapters",
        lora_task_id=np.array([[1]], np.uint64),
    ),
    over_http(FEATURES, "LoRA by id", "lora_task_id = 1: not supported: LoRA adapters", lora_task_id=1),
    over_grpc(
        FEATURES,
        "LoRA weights",
        "lora_weights = 'shape [1, 1, 2]': not supported: LoRA",
        lora_weights=np.zeros((1, 1, 2), np.float16),
    ),
    over_grpc(
        FEATURES, "LoRA configuration", "not supported: LoRA adapters", lora_config=np.zeros((1, 1, 3), np.int32)
    ),
    over_grpc(
        FEATURES,
        "a prompt table",
        "prompt_embedding_table = 'shape [1, 1, 2]': not supported: prompt tables",
        prompt_embedding_table=np.zeros((1, 1, 2), np.float16),
    ),
    both(FEATURES, "`prompt_vocab_size`", "prompt_vocab_size = 1: not supported: prompt tables", prompt_vocab_size=1),
    both(FEATURES, "an image by address", "not supported: images", image_url_input="http://localhost/cat.png"),
    over_grpc(FEATURES, "an image", "not supported: images", image_bytes_input=np.zeros((1, 1, 1, 1, 2), np.uint8)),
    over_grpc(FEATURES, "a video", "not supported: videos", video_bytes_input=np.zeros((1, 1, 1, 1, 2), np.uint8)),
    both(FEATURES, "an encoder's input", "not supported: encoder-decoder models", decoder_text_input="x"),
    both(
        FEATURES,
        "`sampling_parameters`",
        "send temperature, top_k, top_p, seed as inputs",
        sampling_parameters='{"n": 2}',
    ),
)


def parameter(what: str, says: str, **parameters: Any) -> ErrorCase:
    """Refused over both; over HTTP a parameter is a key of the body."""
    return ErrorCase(
        PARAMETERS,
        what,
        Grpc(Refusal(INVALID, says), tensors({}), parameters),
        Http(Refusal(400, says), json_body(parameters)),
    )


PARAMETER_CASES = (
    parameter(
        "`acceptance_rule` that nobody has",
        "acceptance_rule = 'typical': this target offers auto",
        acceptance_rule="typical",
    ),
    parameter("`acceptance_rule`: a number", "acceptance_rule = 3: must be a text", acceptance_rule=3),
    parameter("`acceptance_rule`: a huge text", "xxx...: this target offers auto", acceptance_rule="x" * 100_000),
    parameter(
        "`stream_tokens` that nobody has", "stream_tokens = 'none': must be one of round, each", stream_tokens="none"
    ),
    parameter("`stream_tokens` without a stream", "stream_tokens = 'each': needs stream = true", stream_tokens="each"),
    parameter("`chat` as a text", "chat = 'yes': must be true or false", chat="yes"),
    parameter("`best_of`", "best_of = 3: not supported; inputs are text_input", best_of=3),
    parameter("`model_name`", "model_name = 'gpt': not supported", model_name="gpt"),
    ErrorCase(
        PARAMETERS,
        "an input sent as a parameter",
        grpc=Grpc(
            Refusal(INVALID, "repetition_penalty = '1.5': not supported"), tensors({}), {"repetition_penalty": "1.5"}
        ),
    ),
    over_http(PARAMETERS, "a nested object", "parameter 'logit_bias' has invalid type", logit_bias={"50256": -100}),
    over_http(PARAMETERS, "a list", "parameter 'logprobs' has invalid type", logprobs=[1, 2]),
    over_grpc(
        PARAMETERS,
        "an unknown input",
        "unexpected inference input 'best_of' for model 'spec_decode'",
        IN_STREAM,
        best_of=2,
    ),
)


def model(what: str, status: str, http_status: int, says: str, name: str, version: str = "") -> ErrorCase:
    """The good request at another model or version."""
    folder = f"{name}/versions/{version}" if version else name
    return ErrorCase(
        MODELS,
        what,
        Grpc(Refusal(status, says), tensors({}), model=name, version=version),
        Http(Refusal(http_status, says), json_body({}), f"/v2/models/{folder}/generate"),
    )


def endpoint(what: str, status: int, says: str, path: str, method: str = "POST", **headers: str) -> ErrorCase:
    """The good request at another door."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ErrorCase(MODELS, what, http=Http(Refusal(status, says), json_body({}), path, method, named))


MODEL_CASES = (
    model("no such model", IN_STREAM, 404, "unknown model: 'spec_decod' is not found", "spec_decod"),
    model("no such version", IN_STREAM, 404, "'spec_decode' version 7 is not found", "spec_decode", "7"),
    ErrorCase(
        MODELS,
        "a version that is no number",
        Grpc(Refusal(IN_STREAM, "version string 'latest'"), tensors({}), version="latest"),
        Http(Refusal(404, "Not Found"), json_body({}), "/v2/models/spec_decode/versions/latest/generate"),
    ),
    ErrorCase(
        MODELS,
        "ModelInfer or `/infer` at `spec_decode`, which streams",
        Grpc(Refusal("UNIMPLEMENTED", "decoupled"), tensors({}), unary=True),
        Http(
            Refusal(501, "decoupled"),
            b'{"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}]}',
            "/v2/models/spec_decode/infer",
        ),
    ),
    ErrorCase(
        MODELS,
        "an output that it does not have",
        grpc=Grpc(Refusal(IN_STREAM, "unexpected inference output 'logits'"), tensors({}), outputs=("logits",)),
    ),
    over_http(MODELS, "`stream` true over `/generate`", "exactly 1 response", 200, stream=True),
    endpoint("GET", 405, "Method Not Allowed", GENERATE, "GET"),
    endpoint("no such endpoint", 404, "Not Found", "/v1/chat/completions"),
)

FORM_CASES = (
    over_http(FORM, "no body", "The document is empty", 500, b""),
    over_http(FORM, "no JSON", "failed to parse the request JSON buffer: Invalid value", 500, b"hello"),
    over_http(FORM, "cut off", "Missing a closing quotation mark", 500, b'{"text_input": "a", "max'),
    over_http(FORM, "a list", "attempt to get members for non-object", 500, b'["a"]'),
    over_http(FORM, "a text", "attempt to get members for non-object", 500, b'"a"'),
    over_http(FORM, "binary", "failed to parse the request JSON buffer", 500, bytes(range(256))),
    over_http(
        FORM, "two objects", "must not be followed by other values", 500, b'{"text_input": "a"} {"text_input": "b"}'
    ),
    over_http(FORM, "100,000 lists in one another", "expected 1 string elements", 400, _nested(100_000)),
    over_http(
        FORM, "`parameters` that are no object", "Expected JSON object for keyword: 'parameters'", 500, parameters=3
    ),
    over_http(FORM, "`id` that is no text", "Unable to parse 'id'", 500, id={"a": 1}),
)

CASES: tuple[ErrorCase, ...] = (*FEATURE_CASES, *PARAMETER_CASES, *MODEL_CASES, *FORM_CASES)
