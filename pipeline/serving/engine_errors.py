"""What TensorRT-LLM's error texts mean: the engine has no codes, everything arrives as INTERNAL.

Texts: TensorRT-LLM 1.2, public source (`llmRequest`, `trtGptModelInflightBatching`, `kvCacheManager`, `bufferManager`)
and issues of the Triton backend (#473, #720; TensorRT-LLM #694, #2708, #2789). A text that is not known is passed on.
"""

from __future__ import annotations

import re

from pipeline.engine.step import StepRequest
from pipeline.errors import InvalidRequestError, OverloadedError, SpecDecodeError, StepError

_DRAFT_TOO_LONG = re.compile(r"draft tokens[^()]*\(\d+\)[^()]*maximum[^()]*\((\d+)\)", re.IGNORECASE)
_PROMPT_TOO_LONG = re.compile(r"prompt length[^()]*\([^()]*\) exceeds maximum input length \((\d+)\)", re.IGNORECASE)
_KV_FULL = re.compile(r"no free blocks|can't allocate new blocks|mNextBlocks|freeBlockIterator", re.IGNORECASE)
_HINTS = (
    (
        re.compile(r"incompatible buffer sizes", re.IGNORECASE),
        "draft_logits have the width in manifest.json (padded_vocab_size), not the engine's: build the engines again",
    ),
    (
        re.compile(r"embedding.?bias", re.IGNORECASE),
        "embedding_bias has the width in manifest.json (engine_vocab_size), not the engine's: build the engines again",
    ),
    (
        re.compile(r"logits type is not supported", re.IGNORECASE),
        "the engine's logits are not FP32: build it with --logits_dtype float32",
    ),
)


def draft_limit(error: SpecDecodeError) -> int | None:
    """The number of drafts that the engine takes, where it refused more."""
    match = _DRAFT_TOO_LONG.search(str(error))
    return int(match[1]) if match else None


def explained(error: StepError, request: StepRequest) -> SpecDecodeError:
    """The error that says what a user can do; one line, without the engine's stack."""
    text = str(error)
    if match := _PROMPT_TOO_LONG.search(text):
        limit = f"the engine takes {match[1]} input tokens: build it with a larger max_num_tokens or chunked context"
        return InvalidRequestError("input_ids", f"{len(request.input_ids)} tokens", limit)
    if _KV_FULL.search(text):
        return OverloadedError(
            "the engine's KV cache has no free block; send less at once, or give the engine a larger kv_fraction"
        )
    line = text.partition("\n")[0].strip()
    hint = next((hint for pattern, hint in _HINTS if pattern.search(text)), None)
    if hint is None and line == text:
        return error
    found = StepError(line if hint is None else f"{line} ({hint})")
    found.code = error.code
    return found
