"""The `tensorrt_llm:` section of the spec, and which fields either engine kind refuses.

Defaults are those that speculation with two engines needs under TensorRT-LLM 1.2.1. What must not be otherwise
(paged KV, KV reuse, paged context attention) is no field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from pipeline.step_model_spec import StepModelSpec
from pipeline.strict import Strict

if TYPE_CHECKING:
    from pipeline.spec import DeploymentSpec

RELEASE = "1.2.1"
# One GPU for both models: each pool takes its share of what is free when its model loads, in any order.
SHARED_FRACTIONS = {"target": 0.6, "draft": 0.2}
OWN_FRACTION = 0.9
MOST_TOGETHER = 0.95

_EMBEDDED_ONLY = ("kv_blocks", "threads", "head_tokens")
_TENSORRT_ONLY = (
    "tensor_parallel",
    "pipeline_parallel",
    "weights",
    "gpus",
    "kv_fraction",
    "kv_tokens",
    "engine_dir",
)


class CudaGraphsSpec(Strict):
    """CUDA graphs of one model. An iteration that holds a verify or a prefill never uses one."""

    enabled: bool = True
    cache_size: int | None = Field(
        None, ge=1, le=4096, description="graphs kept, 4 to 10 MB of GPU memory each; absent: limits.max_requests"
    )


class TensorRTSpec(Strict):
    """How TensorRT-LLM engines are built and run."""

    container: str = Field(
        "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3",
        pattern=r"^\S+$",
        description="image that carries TensorRT-LLM 1.2.1; pin it by digest",
    )
    examples_dir: str = Field("/app/examples", min_length=1, description="conversion scripts, as the image has them")
    checkpoint_dir: str | None = Field(None, min_length=1, description="absent: engines/<name>/checkpoints")
    max_num_tokens: int = Field(8192, ge=1, le=1_048_576, description="packed tokens of one iteration")
    workers: int | None = Field(None, ge=1, le=64, description="ranks built at once; absent: all")
    gemm_plugin: Literal["auto", "fp8", "disable"] | None = Field(
        None, description="absent: auto for 16-bit and weight-only products, disable for FP8"
    )
    multiple_profiles: bool = Field(True, description="several optimisation profiles: slower to build, faster to run")
    reduce_fusion: bool = Field(False, description="fuse the all-reduce of tensor_parallel > 1; Llama only")
    kv_cache_dtype: Literal["float16", "fp8"] = Field("float16", description="fp8 needs weights: fp8")
    kv_host_bytes: int = Field(0, ge=0, description="host memory for KV blocks that leave the GPU, per model")
    chunked_context: bool = Field(True, description="prefill in pieces beside running requests")
    # The target's share of graphable iterations is small: only bursts of plain decoding with no verify beside them.
    target_cuda_graphs: CudaGraphsSpec = CudaGraphsSpec(enabled=False)
    draft_cuda_graphs: CudaGraphsSpec = CudaGraphsSpec()


def check_engine_fields(spec: DeploymentSpec) -> None:
    """Refuse what makes no sense for the engine kind of `spec`.

    Raises:
        ValueError: naming the field and its value.
    """
    sections: dict[str, StepModelSpec] = {"target": spec.target, "draft": spec.draft}
    refused = _EMBEDDED_ONLY if spec.engine == "tensorrt_llm" else _TENSORRT_ONLY
    needed = "embedded" if spec.engine == "tensorrt_llm" else "tensorrt_llm"
    for role, section in sections.items():
        for field in refused:
            # A spec that was written out in full holds every default; only another value was chosen.
            if field in type(section).model_fields and (
                (value := getattr(section, field)) != type(section).model_fields[field].default
            ):
                raise ValueError(f"{role}.{field} = {value!r} is for engine: {needed}, not for engine: {spec.engine}")
    if spec.engine == "tensorrt_llm" and spec.device != "auto":
        raise ValueError(f"device = {spec.device!r} is for engine: embedded; engine: tensorrt_llm runs on GPUs alone")
    if spec.engine == "tensorrt_llm":
        _check_tensorrt(spec)
    elif spec.tensorrt_llm != TensorRTSpec():
        raise ValueError(f"tensorrt_llm: this section is for engine: tensorrt_llm, not for engine: {spec.engine}")


def _check_tensorrt(spec: DeploymentSpec) -> None:
    options, limits = spec.tensorrt_llm, spec.limits
    if spec.dtype != "float16":
        raise ValueError(f"dtype = {spec.dtype!r}: engine: tensorrt_llm computes in float16")
    if spec.rule not in ("auto", "token"):
        raise ValueError(f"rule = {spec.rule!r}: engine: tensorrt_llm offers token (auto takes it)")
    if spec.draft.kind != "none" and limits.max_draft_len < 1:
        raise ValueError("limits.max_draft_len = 0: a TensorRT target that verifies drafts needs at least 1")
    verify = limits.max_requests * (limits.max_draft_len + 1)
    if options.max_num_tokens < verify:
        raise ValueError(
            f"tensorrt_llm.max_num_tokens = {options.max_num_tokens}: a verify of limits.max_requests x "
            f"(limits.max_draft_len + 1) = {verify} tokens would not fit one iteration"
        )
    text = limits.max_seq_len + limits.max_draft_len
    if not options.chunked_context and options.max_num_tokens < text:
        raise ValueError(
            f"tensorrt_llm.max_num_tokens = {options.max_num_tokens}: without chunked_context the input of a round, "
            f"the whole text, must fit one iteration: limits.max_seq_len + limits.max_draft_len = {text}"
        )
    longest = text + 1
    for role in spec.model_roles:
        section = spec.step_model(role)
        if section.kv_tokens is not None and section.kv_tokens < longest:
            raise ValueError(
                f"{role}.kv_tokens = {section.kv_tokens}: one request of limits.max_seq_len + limits.max_draft_len "
                f"+ 1 = {longest} tokens would not fit"
            )
        if options.kv_cache_dtype == "fp8" and section.weights != "fp8" and section.engine_dir is None:
            raise ValueError(
                f"tensorrt_llm.kv_cache_dtype = 'fp8' needs {role}.weights: fp8 (it is {section.weights!r}): "
                "the scales come from the same calibration"
            )
    # Pools that are both bounded in tokens need no fraction to leave each other room.
    if spec.shares_gpu and any(spec.step_model(role).kv_tokens is None for role in spec.model_roles):
        fractions = {role: kv_fraction(spec, role) for role in spec.model_roles}
        if sum(fractions.values()) > MOST_TOGETHER:
            shown = " + ".join(f"{role}.kv_fraction {value:g}" for role, value in fractions.items())
            raise ValueError(
                f"{shown} = {sum(fractions.values()):g}: the models share a GPU, where the fractions may add up to "
                f"{MOST_TOGETHER}"
            )


def kv_fraction(spec: DeploymentSpec, role: Literal["target", "draft"]) -> float:
    """Share of the GPU memory left free that a model's KV pool takes."""
    chosen = spec.step_model(role).kv_fraction
    if chosen is not None:
        return chosen
    return SHARED_FRACTIONS[role] if spec.shares_gpu else OWN_FRACTION


def cuda_graphs(spec: DeploymentSpec, role: Literal["target", "draft"]) -> CudaGraphsSpec:
    """CUDA graphs of one model, with the size of the cache filled in."""
    graphs = spec.tensorrt_llm.target_cuda_graphs if role == "target" else spec.tensorrt_llm.draft_cuda_graphs
    # The state of a batch is its number of sequences, for the most part.
    size = graphs.cache_size if graphs.cache_size is not None else spec.limits.max_requests
    return CudaGraphsSpec(enabled=graphs.enabled, cache_size=size)


def kv_blocks(spec: DeploymentSpec, role: Literal["target", "draft"]) -> int:
    """Blocks of the KV pool that admission counts with.

    The pool's true size follows from the GPU's free memory when the model loads. Without `kv_tokens` admission must
    not be what limits: every slot then holds a request of the greatest length, and the engine's scheduler queues.
    """
    per_block, limits = spec.tokens_per_block, spec.limits
    bound = spec.step_model(role).kv_tokens
    if bound is not None:
        return bound // per_block
    longest = limits.max_seq_len + limits.max_draft_len + 1
    return limits.max_requests * -(-longest // per_block)
