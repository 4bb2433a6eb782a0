"""Parameters of a step model on NVIDIA's `tensorrtllm` backend, from the deployment spec.

Names and what the backend makes of them: NVIDIA TensorRT-LLM 1.2, `triton_backend/inflight_batcher_llm/src/
model_instance_state.cc`. A parameter that is left out has the backend's default, except the three of guided decoding,
without which it does not load.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.spec import ROOT, DeploymentSpec, Role
from pipeline.tensorrt_spec import cuda_graphs, kv_fraction

BACKEND = "tensorrtllm"
ENGINE_FOLDER = "engine"  # within engines/<name>/<role>
WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
CANCELLATION_CHECK_MS = 20  # the default of 100 ms is several rounds


def engine_path(spec: DeploymentSpec, role: Role, engines_dir: Path) -> Path:
    """The compiled engine of a role: the spec's own, or one from elsewhere."""
    chosen = spec.step_model(role).engine_dir
    if chosen is None:
        return engines_dir / role / ENGINE_FOLDER
    return (ROOT / Path(chosen).expanduser()).resolve()  # an absolute one replaces ROOT


def tensorrt_parameters(spec: DeploymentSpec, role: Role, engines_dir: Path) -> dict[str, str]:
    """Every parameter that speculation depends on, said and not left to a default."""
    options, part, graphs = spec.tensorrt_llm, spec.step_model(role), cuda_graphs(spec, role)
    bound = {} if part.kv_tokens is None else {"max_tokens_in_paged_kv_cache": str(part.kv_tokens)}
    return {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": str(engine_path(spec, role, engines_dir)),
        "executor_worker_path": WORKER,
        "gpu_device_ids": ",".join(map(str, part.device_ids)),
        "max_beam_width": "1",
        # The other policy pauses requests: their generators begin anew from the same seed, and their tokens so far
        # are prompt to min_tokens. The text would not follow the target's law.
        "batch_scheduler_policy": "guaranteed_no_evict",
        # A verify is a request of its own: without reuse each would be a full prefill.
        "enable_kv_cache_reuse": "true",
        "kv_cache_free_gpu_mem_fraction": f"{kv_fraction(spec, role):g}",
        **bound,
        "kv_cache_host_memory_bytes": str(options.kv_host_bytes),
        "enable_chunked_context": _flag(options.chunked_context),
        "cuda_graph_mode": _flag(graphs.enabled),
        "cuda_graph_cache_size": str(graphs.cache_size if graphs.enabled else 0),
        "multi_block_mode": "true",
        # Draft logits over MPI have data races in 1.2.1, and need processes that are started by hand.
        "speculative_decoding_fast_logits": "false",
        # Each call says it too: there are releases in which one of the two is not obeyed.
        "exclude_input_in_output": "true",
        "normalize_log_probs": "true",
        "cancellation_check_period_ms": str(CANCELLATION_CHECK_MS),
        "stats_check_period_ms": "100",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "tokenizer_dir": "",
        "guided_decoding_backend": "",
        "xgrammar_tokenizer_info_path": "",
    }


def _flag(on: bool) -> str:
    return "true" if on else "false"
