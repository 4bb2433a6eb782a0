"""Bad values of what spec_decode takes."""

from __future__ import annotations

import numpy as np

from tests.served.error_case import IN_STREAM, ErrorCase, both, each, over_grpc, over_http

NAN, INF = float("nan"), float("inf")
# Triton's words for JSON that is not of an input's type; they name no field.
NOT_TEXT = "attempt to access JSON non-string as string"
NOT_INTEGER = "attempt to access JSON non-signed-integer as signed-integer"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_NUMBER = "attempt to access JSON non-number as double"
NOT_FLAG = "attempt to access JSON non-boolean as boolean"

PROMPTS = "The prompt"
LENGTHS = "Lengths and counts"
SAMPLING = "Sampling"
OTHERS = "Other inputs"

PROMPT_CASES = (
    both(PROMPTS, "`text_input` left out", "text_input = None: must be given", text_input=None, temperature=1.0),
    both(PROMPTS, "`text_input` empty", "[INVALID_ARGUMENT] text_input = '': must not be empty", text_input=""),
    each(
        PROMPTS, "`text_input`: a number", "inference input 'text_input' data-type is 'INT32'", NOT_TEXT, text_input=5
    ),
    each(
        PROMPTS,
        "`text_input`: two prompts in one request",
        "unexpected shape for input 'text_input'",
        "input 'text_input' batch size does not match",
        http_status=400,
        text_input=["a", "b"],
    ),
    over_grpc(
        PROMPTS,
        "`text_input`: a batch of two",
        "input 'text_input' batch size does not match",
        IN_STREAM,
        text_input=np.array([[b"a"], [b"b"]], np.object_),
    ),
    over_grpc(
        PROMPTS,
        "`text_input`: bytes that are not UTF-8",
        "text_input = b'abc\\xff': must be UTF-8; byte 3 is not",
        text_input=b"abc\xff",
    ),
    over_http(
        PROMPTS,
        "`text_input`: bytes that are not UTF-8",
        "must be UTF-8",
        body=b'{"text_input": "abc\xff", "max_tokens": 2}',
    ),
    over_http(
        PROMPTS,
        "`text_input`: half of a surrogate pair",
        "The surrogate pair in string is invalid",
        500,
        body=b'{"text_input": "\\ud800", "max_tokens": 2}',
    ),
    over_http(PROMPTS, "`text_input`: null", NOT_TEXT, 500, body=b'{"text_input": null, "max_tokens": 2}'),
    over_http(PROMPTS, "`text_input`: an object", NOT_TEXT, 500, text_input={"a": 1}),
    both(
        PROMPTS,
        "`text_input`: more tokens than the context",
        "must be shorter than max_seq_len = 2048",
        text_input="sea " * 2100,
    ),
    both(
        PROMPTS,
        "`text_input`: more bytes than 2048 tokens can be expected to have",
        "140000 bytes': at most 131072: 64 x max_seq_len = 2048",
        text_input="x" * 140_000,
    ),
    both(
        PROMPTS, "`text_input`: ten million characters", "10000000 bytes': at most 131072", text_input="x" * 10_000_000
    ),
)

LENGTH_CASES = (
    both(LENGTHS, "`max_tokens` 0", "max_tokens = 0: must be at least 1", max_tokens=0),
    both(LENGTHS, "`max_tokens`: negative", "max_tokens = -5: must be at least 1", max_tokens=-5),
    both(LENGTHS, "prompt and `max_tokens` over the context", "must not exceed max_seq_len = 2048", max_tokens=5000),
    over_http(LENGTHS, "`max_tokens`: above 32 bits", "max_tokens = -2147483648: must be at least 1", max_tokens=2**31),
    each(
        LENGTHS,
        "`max_tokens`: a fraction",
        "inference input 'max_tokens' data-type is 'FP32'",
        NOT_INTEGER,
        max_tokens=1.5,
    ),
    each(
        LENGTHS,
        "`max_tokens`: a text",
        "inference input 'max_tokens' data-type is 'BYTES'",
        NOT_INTEGER,
        max_tokens="5",
    ),
    over_http(LENGTHS, "`max_tokens`: true", NOT_INTEGER, 500, max_tokens=True),
    each(
        LENGTHS,
        "`max_tokens`: two of them",
        "unexpected shape for input 'max_tokens'",
        "batch size does not match other inputs",
        http_status=400,
        max_tokens=[1, 2],
    ),
    over_grpc(
        LENGTHS,
        "`max_tokens`: none in the tensor",
        "unexpected shape for input 'max_tokens'",
        IN_STREAM,
        max_tokens=np.zeros((1, 0), np.int32),
    ),
    both(LENGTHS, "`min_tokens` negative", "min_tokens = -1: must be between 0 and max_tokens = 2", min_tokens=-1),
    both(
        LENGTHS,
        "`min_tokens`: above `max_tokens`",
        "min_tokens = 3: must be between 0 and max_tokens = 2",
        min_tokens=3,
    ),
    both(LENGTHS, "`min_length` negative", "min_length = -1: must be 0 or more", min_length=-1),
    both(
        LENGTHS,
        "`min_length` and `min_tokens` that differ",
        "min_length = 1: is another name of min_tokens, which is 2",
        min_length=1,
        min_tokens=2,
    ),
    both(
        LENGTHS,
        "`num_return_sequences` 0",
        "num_return_sequences = 0: must be between 1 and 64",
        num_return_sequences=0,
    ),
    both(
        LENGTHS,
        "`num_return_sequences`: too many",
        "num_return_sequences = 65: must be between 1 and 64",
        num_return_sequences=65,
    ),
    both(LENGTHS, "`num_draft_tokens` negative", "num_draft_tokens = -1: must be 0 or more", num_draft_tokens=-1),
    both(LENGTHS, "`num_draft_tokens`: more than the target verifies", "at most 11 draft tokens", num_draft_tokens=12),
    over_http(LENGTHS, "`num_draft_tokens`: a fraction", NOT_INTEGER, 500, num_draft_tokens=0.5),
)

SAMPLING_CASES = (
    both(SAMPLING, "`temperature` negative", "temperature = -0.5: must be a number in [0, 100]", temperature=-0.5),
    both(SAMPLING, "`temperature`: absurd", "temperature = 1000.0: must be a number in [0, 100]", temperature=1000.0),
    over_grpc(
        SAMPLING, "`temperature`: not a number", "temperature = nan: must be a number in [0, 100]", temperature=NAN
    ),
    over_http(SAMPLING, "`temperature`: NaN", "temperature = nan: must be a number in [0, 100]", temperature=NAN),
    over_grpc(SAMPLING, "`temperature`: infinite", "temperature = inf: must be a number in [0, 100]", temperature=INF),
    over_http(
        SAMPLING,
        "`temperature`: beyond any float",
        "Number too big to be stored in double",
        500,
        body=b'{"text_input": "a", "temperature": 1e400}',
    ),
    over_http(
        SAMPLING,
        "`temperature`: beyond float32",
        "temperature = inf: must be a number in [0, 100]",
        body=b'{"text_input": "a", "temperature": 1e300}',
    ),
    each(
        SAMPLING,
        "`temperature`: a text",
        "inference input 'temperature' data-type is 'BYTES'",
        NOT_NUMBER,
        temperature="hot",
    ),
    both(SAMPLING, "`top_k` negative", "top_k = -1: must be 0 (off) or a positive number of tokens", top_k=-1),
    over_http(SAMPLING, "`top_k`: a fraction", NOT_INTEGER, 500, top_k=2.5),
    both(SAMPLING, "`top_p` 0", "top_p = 0.0: must be in (0, 1]; 1.0 is off", top_p=0.0),
    both(SAMPLING, "`top_p`: above 1", "top_p = 1.5: must be in (0, 1]; 1.0 is off", top_p=1.5),
    over_grpc(SAMPLING, "`top_p`: not a number", "top_p = nan: must be in (0, 1]; 1.0 is off", top_p=NAN),
    both(SAMPLING, "`min_p` negative", "min_p = -0.5: must be a number in [0, 1]", min_p=-0.5),
    both(SAMPLING, "`min_p`: above 1", "min_p = 2.0: must be a number in [0, 1]", min_p=2.0),
    over_grpc(SAMPLING, "`min_p`: not a number", "min_p = nan: must be a number in [0, 1]", min_p=NAN),
    both(
        SAMPLING,
        "`repetition_penalty` 0",
        "repetition_penalty = 0.0: must be a number in [0.01, 100]",
        repetition_penalty=0.0,
    ),
    over_grpc(
        SAMPLING,
        "`repetition_penalty`: infinite",
        "repetition_penalty = inf: must be a number in [0.01, 100]",
        repetition_penalty=INF,
    ),
    both(
        SAMPLING,
        "`presence_penalty` absurd",
        "presence_penalty = 1000.0: must be a number in [-100, 100]",
        presence_penalty=1000.0,
    ),
    over_grpc(
        SAMPLING,
        "`presence_penalty`: not a number",
        "presence_penalty = nan: must be a number in [-100, 100]",
        presence_penalty=NAN,
    ),
    both(
        SAMPLING,
        "`frequency_penalty` absurd",
        "frequency_penalty = -1000.0: must be a number in [-100, 100]",
        frequency_penalty=-1000.0,
    ),
    over_grpc(
        SAMPLING,
        "`frequency_penalty`: minus infinity",
        "frequency_penalty = -inf: must be a number in [-100, 100]",
        frequency_penalty=-INF,
    ),
    over_http(SAMPLING, "`seed` negative", NOT_UNSIGNED, 500, seed=-1),
    over_http(SAMPLING, "`seed`: above 64 bits", NOT_UNSIGNED, 500, seed=2**64),
    over_grpc(SAMPLING, "`seed`: a signed integer", "inference input 'seed' data-type is 'INT32'", IN_STREAM, seed=5),
    over_http(SAMPLING, "`seed`: a text", NOT_UNSIGNED, 500, seed="5"),
    both(
        SAMPLING,
        "`end_id` outside the vocabulary",
        "end_id = 49152: must be -1 (none) or a token id below 49152",
        end_id=49152,
    ),
    both(SAMPLING, "`end_id`: below -1", "end_id = -2: must be -1 (none) or a token id below 49152", end_id=-2),
)

OTHER_CASES = (
    each(OTHERS, "`stream` as a text", "inference input 'stream' data-type is 'BYTES'", NOT_FLAG, stream="yes"),
    over_http(OTHERS, "`stream` as a number", NOT_FLAG, 500, stream=1),
    each(
        OTHERS,
        "`exclude_input_in_output` as a text",
        "inference input 'exclude_input_in_output' data-type is 'BYTES'",
        NOT_FLAG,
        exclude_input_in_output="no",
    ),
    each(
        OTHERS,
        "`return_log_probs` as a text",
        "inference input 'return_log_probs' data-type is 'BYTES'",
        NOT_FLAG,
        return_log_probs="yes",
    ),
    over_http(
        OTHERS,
        "`return_perf_metrics` as a list of two",
        "batch size does not match other inputs",
        return_perf_metrics=[True, False],
    ),
)

CASES: tuple[ErrorCase, ...] = (*PROMPT_CASES, *LENGTH_CASES, *SAMPLING_CASES, *OTHER_CASES)
