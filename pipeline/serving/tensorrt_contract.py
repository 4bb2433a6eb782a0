"""The tensor contract of NVIDIA's `tensorrtllm` backend: everything its model declares.

The backend refuses no request for what is left out here, but Triton does: what is not declared cannot be sent.
Source: NVIDIA TensorRT-LLM 1.2, `triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt`. Logits
are FP32, as engines compute them unless told otherwise.
"""

from __future__ import annotations

from pipeline.serving.contract import ModelContract, TensorSpec


def _scalars(kind: str, *names: str, optional: bool = True) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, kind, optional=optional, scalar=True) for name in names)


def _ragged(kind: str, dims: tuple[int, ...], *names: str) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, kind, dims, optional=True, ragged=True) for name in names)


def _outputs(kind: str, dims: tuple[int, ...], *names: str) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, kind, dims) for name in names)


_INPUTS = (
    *_ragged("INT32", (-1,), "input_ids"),
    *_ragged("FP16", (-1, -1), "encoder_input_features"),
    *_scalars("INT32", "encoder_output_lengths"),
    *_scalars("INT32", "input_lengths", "request_output_len", optional=False),
    *_scalars("INT32", "num_return_sequences"),
    *_ragged("INT32", (-1,), "draft_input_ids", "decoder_input_ids"),
    *_scalars("INT32", "decoder_input_lengths"),
    *_ragged("FP32", (-1, -1), "draft_logits"),
    *_scalars("FP32", "draft_acceptance_threshold"),
    *_scalars("INT32", "end_id", "pad_id"),
    *_ragged("INT32", (2, -1), "stop_words_list", "bad_words_list"),
    *_ragged("FP32", (-1,), "embedding_bias"),
    *_scalars("INT32", "beam_width"),
    *_scalars("FP32", "temperature"),
    *_scalars("INT32", "runtime_top_k"),
    *_scalars("FP32", "runtime_top_p", "runtime_top_p_min", "runtime_top_p_decay"),
    *_scalars("INT32", "runtime_top_p_reset_ids"),
    *_scalars("FP32", "len_penalty"),
    *_scalars("BOOL", "early_stopping"),
    *_scalars("FP32", "repetition_penalty"),
    *_scalars("INT32", "min_tokens"),
    *_scalars("FP32", "beam_search_diversity_rate", "presence_penalty", "frequency_penalty"),
    *_scalars("UINT64", "seed"),
    *_scalars(
        "BOOL",
        "return_log_probs",
        "return_context_logits",
        "return_generation_logits",
        "return_perf_metrics",
        "return_num_input_tokens",
        "return_num_output_tokens",
        "exclude_input_in_output",
        "stop",
        "streaming",
    ),
    *_ragged("FP16", (-1, -1), "prompt_embedding_table"),
    *_ragged("UINT64", (-1,), "prompt_table_extra_ids"),
    *_scalars("INT32", "prompt_vocab_size"),
    *_ragged("BOOL", (-1, -1), "cross_attention_mask"),
    TensorSpec("mrope_rotary_cos_sin", "FP32", (-1,), optional=True),
    TensorSpec("mrope_position_deltas", "INT64", optional=True),
    *_scalars("UINT64", "lora_task_id"),
    *_ragged("FP16", (-1, -1), "lora_weights"),
    *_ragged("INT32", (-1, 3), "lora_config"),
    *_ragged("UINT8", (-1,), "context_phase_params"),
    *_ragged("BOOL", (1,), "skip_cross_attn_blocks"),
    *_ragged(
        "INT32",
        (-1,),
        "retention_token_range_starts",
        "retention_token_range_ends",
        "retention_token_range_priorities",
        "retention_token_range_durations_ms",
    ),
    *_ragged("INT32", (1,), "retention_decode_priority", "retention_decode_duration_ms"),
    *_ragged("STRING", (1,), "guided_decoding_guide_type", "guided_decoding_guide"),
    *_ragged("INT32", (1,), "lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"),
)

_OUTPUTS = (
    *_outputs("INT32", (-1, -1), "output_ids"),
    *_outputs("INT32", (-1,), "sequence_length"),
    *_outputs("FP32", (-1,), "cum_log_probs"),
    *_outputs("FP32", (-1, -1), "output_log_probs", "context_logits"),
    *_outputs("FP32", (-1, -1, -1), "generation_logits"),
    *_outputs("INT32", (1,), "batch_index", "sequence_index"),
    *_outputs("UINT8", (-1,), "context_phase_params"),
    *_outputs("INT32", (1,), "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks"),
    *_outputs("INT64", (1,), "arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"),
    *_outputs("FP32", (1,), "acceptance_rate"),
    *_outputs("INT32", (1,), "total_accepted_draft_tokens", "total_draft_tokens"),
    *_outputs("INT32", (1,), "num_input_tokens", "num_output_tokens"),
)


def tensorrt_contract(max_requests: int) -> ModelContract:
    """The contract of a step model on NVIDIA's backend.

    Args:
        max_requests: Triton hands so many waiting requests over at once; each has a batch dimension of 1, and the
            engine batches by itself.
    """
    return ModelContract(_INPUTS, _OUTPUTS, max_batch_size=max_requests, decoupled=False)
