"""Bad direct calls of the step models, target and draft."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.served.error_case import GOOD, INVALID, ErrorCase, Grpc, Http, Refusal, json_body, tensor

STEPS = "Step models, called directly"

STEP_GOOD: dict[str, Any] = {
    "input_ids": np.array([[10, 11]], np.int32),
    "input_lengths": 2,
    "request_output_len": 1,
}
DATATYPES = {"int32": "INT32", "float32": "FP32", "bool": "BOOL", "uint64": "UINT64"}


def step(
    what: str, says: str, name: str = "target", parameters: dict[str, Any] | None = None, **inputs: Any
) -> ErrorCase:
    """A direct call of a step model, over ModelInfer and `/infer`."""
    given = {key: tensor(value) for key, value in {**STEP_GOOD, **inputs}.items() if value is not None}
    grpc = Grpc(Refusal(INVALID, says), given, parameters or {}, name, unary=True)
    entries = [
        {
            "name": key,
            "shape": list(value.shape),
            "datatype": DATATYPES[str(value.dtype)],
            "data": value.reshape(-1).tolist(),
        }
        for key, value in given.items()
    ]
    body = json_body({"inputs": entries, "parameters": parameters, **dict.fromkeys(GOOD)})
    return ErrorCase(STEPS, what, grpc, Http(Refusal(400, says), body, f"/v2/models/{name}/infer"))


def step_over_grpc(what: str, says: str, **inputs: Any) -> ErrorCase:
    """As `step`, with numbers that JSON does not have."""
    return replace(step(what, says, **inputs), http=None)


CASES: tuple[ErrorCase, ...] = (
    step("`input_ids` left out", "input_ids = None: must be given", input_ids=None, temperature=1.0),
    step(
        "`input_ids`: empty",
        "input_ids = []: must hold at least one token",
        input_ids=np.zeros((1, 0), np.int32),
        input_lengths=0,
    ),
    step("`input_ids`: negative", "input_ids = -3: token ids are 0 or more", input_ids=np.array([[10, -3]], np.int32)),
    step(
        "`input_ids`: outside the vocabulary",
        "input_ids = 49152: must be a token id in [0, 49152)",
        input_ids=np.array([[10, 49152]], np.int32),
    ),
    step(
        "`input_ids`: longer than the engine's context",
        "this engine holds 2048 tokens (max_seq_len)",
        input_ids=np.ones((1, 3000), np.int32),
        input_lengths=3000,
    ),
    step("`input_lengths` of another length", "input_lengths = 5: input_ids holds 2 tokens", input_lengths=5),
    step("`request_output_len` 0", "request_output_len = 0: must be at least 1", request_output_len=0),
    step("`request_output_len`: absurd", "this engine holds 2048 tokens (max_seq_len)", request_output_len=2**31 - 1),
    step(
        "`request_output_len` that is not K + 1",
        "request_output_len = 1: must be K + 1 = 3 with K = 2 drafts",
        draft_input_ids=np.array([[5, 6]], np.int32),
    ),
    step(
        "`draft_input_ids`: outside the vocabulary",
        "draft_input_ids = 49152: must be a token id in [0, 49152)",
        draft_input_ids=np.array([[49152]], np.int32),
        request_output_len=2,
    ),
    step(
        "`draft_input_ids`: more than the engine verifies",
        "this engine verifies at most",
        draft_input_ids=np.ones((1, 40), np.int32),
        request_output_len=41,
    ),
    step(
        "`draft_logits` of another K",
        "must be [K, vocab] with K = 1 drafts",
        draft_input_ids=np.array([[5]], np.int32),
        request_output_len=2,
        draft_logits=np.zeros((1, 2, 8), np.float32),
    ),
    step(
        "`draft_logits` without drafts",
        "must be [K, vocab] with K = 0 drafts",
        draft_logits=np.zeros((1, 2, 8), np.float32),
    ),
    step_over_grpc(
        "`draft_logits`: not numbers",
        "draft_logits = nan: row 0 must hold numbers, or -inf, not all -inf",
        draft_input_ids=np.array([[5]], np.int32),
        request_output_len=2,
        draft_logits=np.full((1, 1, 49152), np.nan, np.float32),
        temperature=1.0,
        runtime_top_k=0,
    ),
    step_over_grpc(
        "`temperature`: not a number", "temperature = nan: must be a number in [0, 100]", temperature=float("nan")
    ),
    step("`runtime_top_p` 0", "runtime_top_p = 0.0: must be in (0, 1]; 1.0 is off", runtime_top_p=0.0),
    step(
        "`embedding_bias` of another vocabulary",
        "embedding_bias = 49152: must be a token id in [0, 49152)",
        embedding_bias=np.ones((1, 49153), np.float32),
    ),
    step_over_grpc(
        "`embedding_bias`: not a number", "embedding_bias = nan", embedding_bias=np.full((1, 49152), np.nan, np.float32)
    ),
    step(
        "`bad_words_list` whose offsets fall",
        "bad_words_list = ",
        bad_words_list=np.array([[[5, 6, 7], [3, 1, -1]]], np.int32),
    ),
    step(
        "`bad_words_list`: outside the vocabulary",
        "bad_words_list = 49152: must be a token id in [0, 49152)",
        bad_words_list=np.array([[[49152], [1]]], np.int32),
    ),
    step("`min_tokens` negative", "min_tokens = -1: must be 0 or more", min_tokens=-1),
    step(
        "`acceptance_rule` that nobody has",
        "acceptance_rule = 'typical': this target offers",
        parameters={"acceptance_rule": "typical"},
    ),
    step("`arrival` as a text", "arrival = 'first': must be", parameters={"arrival": "first"}),
    step(
        "a batch of two",
        "batch-size must be <= 1 for 'target'",
        input_ids=np.array([[1], [2]], np.int32),
        input_lengths=np.array([[1], [1]], np.int32),
        request_output_len=np.array([[1], [1]], np.int32),
    ),
    step("an input that it does not have", "unexpected inference input 'prompt'", prompt=1),
    step(
        "the draft: a negative token",
        "input_ids = -3: token ids are 0 or more",
        name="draft",
        input_ids=np.array([[10, -3]], np.int32),
    ),
    step(
        "the draft: outside the vocabulary",
        "input_ids = 49152: must be a token id",
        name="draft",
        input_ids=np.array([[10, 49152]], np.int32),
    ),
)
