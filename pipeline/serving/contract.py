"""The tensor contract: names, types and dimensions of the three Triton models, as data.

Source: NVIDIA TensorRT-LLM 1.2, `triton_backend/all_models/inflight_batcher_llm/{tensorrt_llm,
tensorrt_llm_bls}/config.pbtxt`. Names, types and dimensions are NVIDIA's; `TensorSpec.own` marks what is
ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Tensors = dict[str, Array]

NUMPY_TYPES: dict[str, type[np.generic]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "STRING": np.object_,
}

TARGET_MODEL = "target"
DRAFT_MODEL = "draft"
SPEC_DECODE_MODEL = "spec_decode"

# Request parameters: Triton carries them beside the tensors.
RULE_PARAMETER = "acceptance_rule"
ARRIVAL_PARAMETER = "arrival"
PRIORITY_PARAMETER = "priority"
CONTINUES_PARAMETER = "continues"
CHAT_PARAMETER = "chat"
STREAM_TOKENS_PARAMETER = "stream_tokens"
TIMEOUT_PARAMETER = "timeout"
# Triton's gRPC front end keeps a parameter `priority` for its own queue; the other name reaches a model.
PRIORITY_PARAMETERS = ("request_priority", "priority")

# What an NVIDIA engine sends with return_perf_metrics, of what the loop uses.
PERF_OUTPUTS = (
    "acceptance_rate",
    "total_draft_tokens",
    "total_accepted_draft_tokens",
    "kv_cache_alloc_new_blocks",
    "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks",
)

# All counters of a step in one tensor: each further tensor costs 20 to 30 us on its way between two models.
STEP_STATS = "specdec_step_stats"
STEP_STATS_FIELDS = (
    "total_draft_tokens",
    "total_accepted_draft_tokens",
    "kv_cache_alloc_new_blocks",
    "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks",
    "reused_tokens",
    "computed_tokens",
    "compute_s",
)


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor.

    Attributes:
        name: as on the wire.
        kind: Triton's type without its TYPE_ prefix.
        dims: without the batch dimension; -1 is any length.
        optional: a request may leave it out.
        scalar: `reshape: { shape: [ ] }`: dims [1] on the wire, no dimension inside the model.
        ragged: `allow_ragged_batch`.
        own: not one of NVIDIA's names.
    """

    name: str
    kind: str
    dims: tuple[int, ...] = (1,)
    optional: bool = False
    scalar: bool = False
    ragged: bool = False
    own: bool = False

    @property
    def dtype(self) -> type[np.generic]:
        return NUMPY_TYPES[self.kind]


@dataclass(frozen=True)
class ModelContract:
    """What one Triton model takes and gives.

    Attributes:
        max_batch_size: 0: tensors have no batch dimension; 1: each starts with a batch dimension of 1, and
            Triton refuses a larger one with "inference request batch-size must be <= 1".
        decoupled: a request may get any number of responses.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    decoupled: bool

    def input(self, name: str) -> TensorSpec:
        return _named(self.inputs, name)

    def output(self, name: str) -> TensorSpec:
        return _named(self.outputs, name)

    @property
    def batch_dims(self) -> tuple[int, ...]:
        """The leading dimensions of every tensor on the wire: (1,) or ()."""
        return (1,) if self.max_batch_size else ()


def _named(specs: tuple[TensorSpec, ...], name: str) -> TensorSpec:
    for spec in specs:
        if spec.name == name:
            return spec
    raise KeyError(name)


def _scalar(name: str, kind: str, *, optional: bool = True) -> TensorSpec:
    return TensorSpec(name, kind, optional=optional, scalar=True)


def _option(name: str, kind: str, dims: tuple[int, ...] = (1,), *, own: bool = False) -> TensorSpec:
    return TensorSpec(name, kind, dims, optional=True, own=own)


# Tensors carry a batch dimension of 1: input_ids [1, n], output_ids [1, 1, len].
STEP = ModelContract(
    max_batch_size=1,
    decoupled=False,
    inputs=(
        TensorSpec("input_ids", "INT32", (-1,), optional=True, ragged=True),
        _scalar("input_lengths", "INT32", optional=False),
        _scalar("request_output_len", "INT32", optional=False),
        TensorSpec("draft_input_ids", "INT32", (-1,), optional=True, ragged=True),
        TensorSpec("draft_logits", "FP32", (-1, -1), optional=True, ragged=True),
        _scalar("end_id", "INT32"),
        _scalar("runtime_top_k", "INT32"),
        _scalar("runtime_top_p", "FP32"),
        TensorSpec("runtime_min_p", "FP32", optional=True, scalar=True, own=True),
        _scalar("temperature", "FP32"),
        _scalar("repetition_penalty", "FP32"),
        _scalar("presence_penalty", "FP32"),
        _scalar("frequency_penalty", "FP32"),
        TensorSpec("embedding_bias", "FP32", (-1,), optional=True, ragged=True),
        TensorSpec("bad_words_list", "INT32", (2, -1), optional=True, ragged=True),
        _scalar("min_tokens", "INT32"),
        _scalar("seed", "UINT64"),
        _scalar("return_log_probs", "BOOL"),
        _scalar("return_generation_logits", "BOOL"),
        _scalar("return_perf_metrics", "BOOL"),
        _scalar("exclude_input_in_output", "BOOL"),
        _scalar("stop", "BOOL"),
    ),
    outputs=(
        TensorSpec("output_ids", "INT32", (-1, -1)),
        TensorSpec("sequence_length", "INT32", (-1,)),
        TensorSpec("output_log_probs", "FP32", (-1, -1)),
        TensorSpec("cum_log_probs", "FP32", (-1,)),
        TensorSpec("generation_logits", "FP32", (-1, -1, -1)),
        TensorSpec("acceptance_rate", "FP32"),
        TensorSpec("total_accepted_draft_tokens", "INT32"),
        TensorSpec("total_draft_tokens", "INT32"),
        TensorSpec("kv_cache_alloc_new_blocks", "INT32"),
        TensorSpec("kv_cache_reused_blocks", "INT32"),
        TensorSpec("kv_cache_alloc_total_blocks", "INT32"),
        TensorSpec(STEP_STATS, "FP64", (len(STEP_STATS_FIELDS),), own=True),
    ),
)

# NVIDIA's inputs for what is not offered: declared, because Triton refuses unknown names in words of its own.
UNSUPPORTED_INPUTS = (
    _option("decoder_text_input", "STRING"),
    _option("image_input", "FP16", (-1, 3, -1, -1)),
    _option("image_bytes_input", "UINT8", (-1, -1, -1, -1)),
    _option("image_url_input", "STRING"),
    _option("video_bytes_input", "UINT8", (-1, -1, -1, -1)),
    _option("prompt_embedding_table", "FP16", (-1, -1)),
    _option("prompt_vocab_size", "INT32"),
    _option("prompt_table_extra_id", "UINT64"),
    _option("lora_task_id", "UINT64"),
    _option("lora_weights", "FP16", (-1, -1)),
    _option("lora_config", "INT32", (-1, 3)),
    _option("guided_decoding_guide_type", "STRING"),
    _option("guided_decoding_guide", "STRING"),
)

# A batch dimension of 1, as NVIDIA's model has: its OpenAI front end and clients send text_input [1, 1].
# min_length and sampling_parameters are what genai-perf's TensorRT-LLM and vLLM back ends put on the wire.
SPEC_DECODE = ModelContract(
    max_batch_size=1,
    decoupled=True,
    inputs=(
        TensorSpec("text_input", "STRING"),
        _option("max_tokens", "INT32"),
        _option("min_tokens", "INT32"),
        _option("temperature", "FP32"),
        _option("top_k", "INT32"),
        _option("top_p", "FP32"),
        _option("min_p", "FP32", own=True),
        _option("repetition_penalty", "FP32"),
        _option("presence_penalty", "FP32"),
        _option("frequency_penalty", "FP32"),
        _option("embedding_bias_words", "STRING", (-1,)),
        _option("embedding_bias_weights", "FP32", (-1,)),
        _option("bad_words", "STRING", (-1,)),
        _option("stop_words", "STRING", (-1,)),
        _option("end_id", "INT32"),
        _option("pad_id", "INT32"),
        _option("seed", "UINT64"),
        _option("stream", "BOOL"),
        _option("exclude_input_in_output", "BOOL"),
        _option("return_log_probs", "BOOL"),
        _option("return_perf_metrics", "BOOL"),
        _option("return_num_input_tokens", "BOOL"),
        _option("return_num_output_tokens", "BOOL"),
        _option("num_return_sequences", "INT32"),
        _option("num_draft_tokens", "INT32"),
        _option("use_draft_logits", "BOOL"),
        _option("beam_width", "INT32"),
        _option("length_penalty", "FP32"),
        _option("return_context_logits", "BOOL"),
        _option("return_generation_logits", "BOOL"),
        _option("min_length", "INT32", own=True),
        _option("sampling_parameters", "STRING", own=True),
        *UNSUPPORTED_INPUTS,
    ),
    outputs=(
        TensorSpec("text_output", "STRING", (-1,)),
        TensorSpec("finish_reason", "STRING", (-1,), own=True),
        TensorSpec("spec_decode_stats", "STRING", (-1,), own=True),
        TensorSpec("spec_decode_round", "STRING", (-1,), own=True),
        TensorSpec("token_ids", "INT32", (-1, -1), own=True),
        TensorSpec("output_log_probs", "FP32", (-1, -1)),
        TensorSpec("cum_log_probs", "FP32", (-1,)),
        TensorSpec("sequence_index", "INT32"),
        TensorSpec("num_input_tokens", "INT32"),
        TensorSpec("num_output_tokens", "INT32"),
        TensorSpec("acceptance_rate", "FP32"),
        TensorSpec("total_accepted_draft_tokens", "INT32"),
        TensorSpec("total_draft_tokens", "INT32"),
    ),
)
