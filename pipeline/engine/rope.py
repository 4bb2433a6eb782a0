"""Rotary position embedding as one complex product.

Hugging Face pairs dimension i with i + d/2. Rows of W_q and W_k are reordered when an engine is built, so that
a pair lies side by side and the rotation is a multiplication of complex numbers; the scores do not change.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pipeline.engine.model_config import ModelConfig


def pair_rows(weight: Tensor, heads: int, head_dim: int) -> Tensor:
    """Reorder rows [heads * d, ...] per head from (x_0.. x_d/2-1, y_0 .. y_d/2-1) to (x_0, y_0, x_1, y_1, ...)."""
    halves = weight.reshape(heads, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def rotations(config: ModelConfig, positions: int) -> Tensor:
    """[positions, 1, d/2] complex64: e^(i * position * frequency), with the config's scaling."""
    dim = config.head_dim
    frequencies = 1.0 / (config.rope_theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    scaling = config.rope_scaling
    if scaling is not None and scaling["rope_type"] == "linear":
        frequencies = frequencies / float(scaling["factor"])
    elif scaling is not None:
        frequencies = _llama3(frequencies, scaling)
    angles = torch.arange(positions, dtype=torch.int64).float()[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)[:, None, :]


def _llama3(frequencies: Tensor, scaling: dict[str, float]) -> Tensor:
    """Llama 3.1's rule: long wavelengths are stretched by `factor`, short ones kept, a ramp between."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / frequencies
    ramp = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - ramp) * frequencies / factor + ramp * frequencies
