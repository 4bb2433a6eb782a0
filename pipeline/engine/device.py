"""Which device an embedded engine computes on, and whether it can."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from pipeline.engine.manifest import Limits
from pipeline.engine.model_config import ModelConfig
from pipeline.errors import EngineError

DeviceKind = Literal["cpu", "cuda"]
OLDEST_CAPABILITY = (7, 0)
"""Older GPUs compute FP16 products at a small part of their FP32 rate, and current builds of torch leave them out."""
WORKING_BYTES = 1 << 30
"""CUDA context, cuBLAS workspaces, activations of the longest pass and graphs; an estimate, not measured."""


def resolve_device(wanted: Literal["auto", "cpu", "cuda"]) -> DeviceKind:
    """What `device:` of a spec means on this machine.

    Raises:
        EngineError: `cuda` is asked for and cannot be had; says what is missing.
    """
    if wanted == "cpu":
        return "cpu"
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() and _capability() >= OLDEST_CAPABILITY else "cpu"
    require_cuda()
    return "cuda"


def require_cuda() -> torch.device:
    """The CUDA device of this process.

    Raises:
        EngineError: torch has no CUDA, there is no GPU or driver, or the GPU is too old.
    """
    if torch.version.cuda is None:
        raise EngineError(
            f"device: cuda: torch {torch.__version__} was built without CUDA; install the CUDA build of torch "
            f"{torch.__version__.split('+')[0]} (docs/gpu.md), or set device: cpu"
        )
    if not torch.cuda.is_available():
        raise EngineError(
            f"device: cuda: torch {torch.__version__} finds no GPU (no device, no driver, or CUDA_VISIBLE_DEVICES "
            "hides it); `nvidia-smi` must list one, or set device: cpu"
        )
    found = _capability()
    if found < OLDEST_CAPABILITY:
        raise EngineError(
            f"device: cuda: {torch.cuda.get_device_name()} has compute capability {found[0]}.{found[1]}; FP16 engines "
            f"need {OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]} or newer; set device: cpu"
        )
    return torch.device("cuda", torch.cuda.current_device())


def torch_device(kind: DeviceKind) -> torch.device:
    """Where an engine that was built for `kind` runs.

    Raises:
        EngineError: this machine has no such device.
    """
    return require_cuda() if kind == "cuda" else torch.device("cpu")


def describe(device: torch.device) -> str:
    """For manifests and reports: cpu, or the GPU's name and compute capability."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda: {torch.cuda.get_device_name(device)}, compute capability {major}.{minor}"


def capability_of(device: torch.device) -> tuple[int, int] | None:
    """Compute capability of a CUDA device, None for another."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def compute_type(device: torch.device, dtype: str) -> torch.dtype:
    """Type of matrices and KV pool: torch has no FP16 products with float32 results for a CPU."""
    return torch.float16 if dtype == "float16" and device.type != "cpu" else torch.float32


def pool_bytes(config: ModelConfig, limits: Limits, dtype: torch.dtype) -> int:
    """Bytes of a KV pool, its scratch block included."""
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize
    return (limits.kv_blocks + 1) * limits.tokens_per_block * per_token


def weights_of(config: ModelConfig, dtype: torch.dtype, head_tokens: int | None = None) -> int:
    """Bytes of the matrices of a model that need not be there yet.

    Args:
        head_tokens: outputs of the LM head, where it has fewer than the vocabulary.
    """
    out = config.num_heads * config.head_dim * config.hidden_size
    layer = config.qkv_size * config.hidden_size + out + 3 * config.hidden_size * config.intermediate_size
    tables = config.vocab_size * config.hidden_size
    if head_tokens is not None:
        tables += head_tokens * config.hidden_size
    elif not config.tie_word_embeddings:
        tables *= 2
    return (config.num_layers * layer + tables) * dtype.itemsize


def weight_bytes(shapes: Mapping[str, Tensor], dtype: torch.dtype) -> int:
    """Bytes of an engine's weights: matrices in `dtype`, the rest in float32."""
    return sum(math.prod(t.shape) * (dtype.itemsize if t.dim() > 1 else 4) for t in shapes.values())


def require_device_memory(
    device: torch.device, config: ModelConfig, weights: Mapping[str, Tensor], dtype: torch.dtype, limits: Limits
) -> None:
    """Refuse an engine that its device has no room for.

    Raises:
        EngineError: with every number.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        coming = {name: tensor for name, tensor in weights.items() if tensor.device != device}
        parts = {"weights": weight_bytes(coming, dtype), "KV pool": pool_bytes(config, limits, dtype)}
        check_memory(parts, free, total, describe(device))


def check_memory(parts: Mapping[str, int], free: int, total: int, where: str) -> None:
    """Compare what is needed with what is free, in bytes.

    Args:
        parts: by name; working memory comes on top.
        where: the device.

    Raises:
        EngineError: with every number, and what to lower.
    """
    needed = sum(parts.values()) + WORKING_BYTES
    if needed > free:
        shown = " + ".join(f"{name} {size / 1e9:.1f}" for name, size in parts.items())
        raise EngineError(
            f"{where}: {shown} + working memory {WORKING_BYTES / 1e9:.1f} = {needed / 1e9:.1f} GB, but "
            f"{free / 1e9:.1f} of {total / 1e9:.1f} GB are free; lower kv_blocks, or take a smaller model"
        )


def _capability() -> tuple[int, int]:
    major, minor = torch.cuda.get_device_capability()
    return major, minor
