"""StepResult as named tensors, both ways, for the BLS adapter and the step server.

Meaning of the tensors: NVIDIA TensorRT-LLM 1.2, Triton backend `tensorrtllm`, model `tensorrt_llm`. Arrays
have a leading batch dimension of 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from pipeline.common_prefix import common_prefix
from pipeline.engine.step import FloatArray, KvUse, StepRequest, StepResult
from pipeline.errors import StepError
from pipeline.serving.contract import PERF_OUTPUTS, STEP_STATS, STEP_STATS_FIELDS, Array, Tensors
from pipeline.serving.request_tensors import StepCall, row


def encode_result(result: StepResult, call: StepCall, outputs: Collection[str]) -> Tensors:
    """Output tensors of a finished call: output_ids [1, 1, len], output_log_probs [1, 1, new], ...

    Args:
        result: what the engine gave.
        call: what it was asked.
        outputs: names that the caller asked for.
    """
    prefix = call.request.input_ids if call.include_input else ()
    ids = np.array(prefix + result.output_ids, np.int32)
    tensors: Tensors = {"output_ids": ids.reshape(1, 1, -1), "sequence_length": row([ids.size])}
    if call.request.return_logits and result.generation_logits is not None:
        tensors["generation_logits"] = np.ascontiguousarray(result.generation_logits, np.float32)[None, None]
    if call.request.return_log_probs:
        tensors["output_log_probs"] = np.array(result.log_probs, np.float32).reshape(1, 1, -1)
        tensors["cum_log_probs"] = np.array([[sum(result.log_probs)]], np.float32)
    if call.perf_metrics:
        drafted, accepted = result.total_draft_tokens, result.total_accepted_draft_tokens
        tensors["acceptance_rate"] = np.array([[accepted / drafted if drafted else 0.0]], np.float32)
        for name, value in zip(PERF_OUTPUTS[1:], _counters(result), strict=False):
            tensors[name] = row([value])
    if STEP_STATS in outputs:
        tensors[STEP_STATS] = np.array([_counters(result)], np.float64)
    return {name: array for name, array in tensors.items() if name in outputs}


def encode_stopped() -> Tensors:
    """The empty answer to a stop call."""
    return {"output_ids": np.zeros((1, 1, 0), np.int32), "sequence_length": row([0])}


def decode_result(tensors: Mapping[str, Array], request: StepRequest) -> StepResult:
    """The result that output tensors describe, for a request sent by `encode_request`.

    Without STEP_STATS the answer is an NVIDIA engine's, which counts "tokens returned - 1" as accepted;
    that is wrong when the correction is the end token, so accepted drafts are counted as the common prefix
    there.

    Raises:
        StepError: a tensor is missing, or does not fit the request.
    """
    new = _new_tokens(tensors, request)
    if STEP_STATS in tensors:
        values = tensors[STEP_STATS].reshape(-1).tolist()
        if len(values) != len(STEP_STATS_FIELDS):
            raise StepError(f"{STEP_STATS} = {len(values)} values: must hold {len(STEP_STATS_FIELDS)}")
        *counts, compute_s = values
        drafted, accepted, alloc_new, reused, alloc_total, reused_tokens, computed_tokens = map(int, counts)
    else:
        drafted = _counter(tensors, "total_draft_tokens", len(request.draft_ids))
        accepted = common_prefix(new, request.draft_ids[:drafted])
        alloc_new, reused, alloc_total = (
            _counter(tensors, f"kv_cache_{name}_blocks", 0) for name in ("alloc_new", "reused", "alloc_total")
        )
        reused_tokens, computed_tokens, compute_s = 0, 0, 0.0
    if not 0 <= drafted <= len(request.draft_ids):
        raise StepError(f"total_draft_tokens = {drafted}: {len(request.draft_ids)} drafts were sent")
    if not 0 <= accepted <= drafted:
        raise StepError(f"total_accepted_draft_tokens = {accepted}: {drafted} drafts were verified")
    return StepResult(
        output_ids=new,
        total_draft_tokens=drafted,
        total_accepted_draft_tokens=accepted,
        generation_logits=_generation_logits(tensors, len(new)) if request.return_logits else None,
        log_probs=_log_probs(tensors, len(new)) if request.return_log_probs else (),
        kv=KvUse(alloc_new, reused, alloc_total, reused_tokens, computed_tokens),
        compute_s=compute_s,
    )


def _counters(result: StepResult) -> list[int | float]:
    """In the order of STEP_STATS_FIELDS."""
    kv = result.kv
    return [
        result.total_draft_tokens,
        result.total_accepted_draft_tokens,
        kv.alloc_new_blocks,
        kv.reused_blocks,
        kv.alloc_total_blocks,
        kv.reused_tokens,
        kv.computed_tokens,
        result.compute_s,
    ]


def _new_tokens(tensors: Mapping[str, Array], request: StepRequest) -> tuple[int, ...]:
    if "output_ids" not in tensors:
        raise StepError("the step model sent no output_ids")
    ids = tensors["output_ids"].reshape(-1)
    # Ours sends what is new and nothing else, and is not asked for its length: each tensor costs 20 to 30 us.
    length = int(tensors["sequence_length"].reshape(-1)[0]) if "sequence_length" in tensors else ids.size
    # NVIDIA's sequence_length counts the input in some releases, also where the input is left out.
    if length not in (ids.size, ids.size + len(request.input_ids)):
        if not 0 <= length < ids.size:
            raise StepError(f"sequence_length = {length}: output_ids holds {ids.size} tokens")
        ids = ids[:length]
    if ids.size > request.max_new_tokens:
        raise StepError(f"output_ids = {ids.size} tokens: request_output_len was {request.max_new_tokens}")
    return tuple(ids.tolist())


def _counter(tensors: Mapping[str, Array], name: str, absent: int) -> int:
    values = tensors.get(name)
    return absent if values is None or not values.size else int(values.reshape(-1)[0])


def _log_probs(tensors: Mapping[str, Array], new: int) -> tuple[float, ...]:
    values = tensors.get("output_log_probs")
    if values is None or values.size < new:
        found = "no output_log_probs" if values is None else f"{values.size} output_log_probs"
        raise StepError(f"the step model sent {found} for {new} tokens")
    return tuple(values.reshape(-1)[:new].tolist())


def _generation_logits(tensors: Mapping[str, Array], new: int) -> FloatArray:
    values = tensors.get("generation_logits")
    if values is None:
        raise StepError("the step model sent no generation_logits")
    if values.ndim != 4 or values.shape[:2] != (1, 1) or values.shape[2] < new:
        raise StepError(f"generation_logits = shape {list(values.shape)}: must be [1, 1, {new}, vocab]")
    return values[0, 0, :new].astype(np.float32, copy=False)
