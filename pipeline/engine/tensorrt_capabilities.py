"""What a TensorRT-LLM 1.2 engine behind NVIDIA's `tensorrtllm` backend can do, as a manifest states it.

Source: TensorRT-LLM 1.2, public source: `layers/externalDraftTokensLayer`, `kernels/penaltyKernels`,
`batch_manager/{llmRequest,trtGptModelInflightBatching}`, `triton_backend/inflight_batcher_llm`. Not yet seen on a GPU.
"""

from __future__ import annotations

from pipeline.engine.manifest import Capabilities

MAX_TOP_K = 1024
"""A larger top_k is cut to this by the engine, with a warning in its log alone."""

TENSORRT_LLM_CAPABILITIES = Capabilities(
    rules=("token",),  # its own token match draws again after a mismatch, which is exact for greedy choices only
    draft_options=("temperature",),  # it returns raw logits: of what it drew from, only the temperature can be redone
    options=(
        "temperature",
        "top_k",
        "top_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "bad_words",
    ),
    generation_logits="raw",
    log_probs=False,  # the layer that verifies drafts computes none
    drops_drafts=True,
    deterministic=False,
    own_tensors=False,
    processors="temperature_first",
    one_hot_logits=True,
    max_top_k=MAX_TOP_K,
)
