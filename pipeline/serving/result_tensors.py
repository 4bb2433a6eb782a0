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
from pipeline.serving.columns import fit_columns
from pipeline.serving.contract import PERF_OUTPUTS, STEP_STATS, STEP_STATS_FIELDS, Array, Tensors
from pipeline.serving.dialect import OWN, Dialect
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


def decode_result(tensors: Mapping[str, Array], request: StepRequest, dialect: Dialect = OWN) -> StepResult:
    """The result that output tensors describe, for a request sent by `encode_request`.

    Without STEP_STATS the answer is an NVIDIA engine's, which counts "tokens returned - 1" as accepted;
    that is wrong when the correction is the end token, so accepted drafts are counted as the common prefix
    there.

    Args:
        tensors: by name.
        request: what was sent.
        dialect: of the engine.

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
        if dialect.drops_drafts and request.draft_ids and "total_draft_tokens" not in tensors:
            raise StepError("the engine sent no total_draft_tokens: a dropped draft cannot be told from an end token")
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
        generation_logits=_generation_logits(tensors, len(new), dialect) if request.return_logits else None,
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
    """What was generated: without the input, the end token, and what lies behind it."""
    if "output_ids" not in tensors:
        raise StepError("the step model sent no output_ids")
    ids = tensors["output_ids"]
    if ids.ndim != 3 or ids.shape[:2] != (1, 1):
        raise StepError(f"output_ids = shape {list(ids.shape)}: must be [1, 1, n]: one sequence, one beam")
    new: list[int] = ids.reshape(-1).tolist()
    prompt = list(request.input_ids)
    # Ours sends what is new and nothing else, and is not asked for its length: each tensor costs 20 to 30 us.
    length = int(tensors["sequence_length"].reshape(-1)[0]) if "sequence_length" in tensors else len(new)
    # NVIDIA's sequence_length counts the input in some releases, also where the input is left out.
    if length not in (len(new), len(new) + len(prompt)):
        if not 0 <= length < len(new):
            raise StepError(f"sequence_length = {length}: output_ids holds {len(new)} tokens")
        new = new[:length]
    if len(new) > request.max_new_tokens and new[: len(prompt)] == prompt:
        new = new[len(prompt) :]  # exclude_input_in_output was not heeded
    if len(new) > request.max_new_tokens:
        raise StepError(f"output_ids = {len(new)} tokens: request_output_len was {request.max_new_tokens}")
    if request.end_id in new:
        new = new[: new.index(request.end_id)]
    return tuple(new)


def _counter(tensors: Mapping[str, Array], name: str, absent: int) -> int:
    values = tensors.get(name)
    return absent if values is None or not values.size else int(values.reshape(-1)[0])


def _log_probs(tensors: Mapping[str, Array], new: int) -> tuple[float, ...]:
    values = tensors.get("output_log_probs")
    if values is None or values.size < new:
        found = "no output_log_probs" if values is None else f"{values.size} output_log_probs"
        raise StepError(f"the step model sent {found} for {new} tokens")
    return tuple(values.reshape(-1)[:new].tolist())


def _generation_logits(tensors: Mapping[str, Array], new: int, dialect: Dialect) -> FloatArray:
    """[new, vocab]. Padding columns of raw logits hold what the head's empty rows give: they are no tokens."""
    values = tensors.get("generation_logits")
    if values is None:
        raise StepError("the step model sent no generation_logits")
    if values.ndim != 4 or values.shape[:2] != (1, 1) or values.shape[2] < new:
        raise StepError(f"generation_logits = shape {list(values.shape)}: must be [1, 1, {new}, vocab]")
    logits: FloatArray = values[0, 0, :new].astype(np.float32, copy=False)
    if not dialect.raw_logits or not new:
        return logits
    if not np.isfinite(logits.max()):
        raise StepError("generation_logits hold numbers that are not finite: no law can be made of them")
    return fit_columns(logits, dialect.vocab_size, dialect.width)
