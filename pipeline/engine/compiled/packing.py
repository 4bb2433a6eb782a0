"""From an engine's weights to the arrays that a pass reads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.engine.compiled.arrays import Shape, Weights
from pipeline.engine.compiled.layer import GATED_PANELS
from pipeline.engine.compiled.memory import zeros
from pipeline.engine.compiled.tile import LANES
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.rope import rotations

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

MATRICES = ("qkv", "out", "gate_up", "down")


def wide(size: int) -> int:
    """`size` rounded up to whole panels."""
    return -(-size // LANES) * LANES


def shape_of(config: ModelConfig, head_width: int, threads: int) -> Shape:
    """Sizes of a pass.

    Args:
        head_width: outputs of the LM head.
        threads: that share the work.
    """
    panels = wide(config.hidden_size) // LANES
    # Wide chunks read memory faster, but the last ones must not leave a thread without work.
    chunk = min((4, 3), key=lambda size: size * math.ceil(math.ceil(panels / size) / threads))
    return Shape(
        layers=config.num_layers,
        hidden=config.hidden_size,
        hidden_wide=wide(config.hidden_size),
        inner=config.intermediate_size,
        inner_wide=wide(config.intermediate_size),
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        dim=config.head_dim,
        dim_wide=wide(config.head_dim),
        vocab=head_width,
        vocab_wide=wide(head_width),
        out_panels=chunk,
        eps=np.float32(config.rms_norm_eps),
        scale=np.float32(config.head_dim**-0.5),
    )


def pack(config: ModelConfig, tensors: dict[str, Tensor], dtype: str, positions: int) -> Weights:
    """Lay out weights in panels.

    Args:
        tensors: as `weights.fused_tensors` names them.
        dtype: "float16" or "float32": how matrices are kept.
        positions: of the rotary embedding.
    """
    kind = torch.float16 if dtype == "float16" else torch.float32
    layout = list(_matrices(config, tensors))
    flat = zeros(sum(rows * columns for _, rows, columns in layout), np.uint16 if dtype == "float16" else np.float32)
    begins, place = [], 0
    for parts, rows, columns in layout:
        # One matrix at a time, so that loading needs little more memory than the engine.
        panels = torch.from_numpy(flat[place : place + rows * columns]).view(kind).view(rows // LANES, columns, LANES)
        panels.copy_(_whole(parts).to(kind).view(rows // LANES, LANES, columns).transpose(1, 2))
        begins.append(place)
        place += rows * columns
    layers = config.num_layers
    norms = [tensors[f"layers.{i}.{name}"] for i in range(layers) for name in ("input_norm", "mlp_norm")]
    head_norms = [
        tensors[f"layers.{i}.{name}"] for i in range(layers) for name in ("q_norm", "k_norm") if config.qk_norm
    ]
    biases, bias_offsets = _biases(config, tensors)
    return Weights(
        matrices=flat,
        offsets=np.array(begins[: 4 * layers], np.int64).reshape(layers, 4),
        embedding=begins[4 * layers],
        head=begins[-1],
        norms=_flat([*norms, tensors["norm"]]),
        head_norms=_flat(head_norms),
        biases=biases,
        bias_offsets=bias_offsets,
        turns=torch.view_as_real(rotations(config, positions)).reshape(-1).contiguous().numpy(),
    )


def _matrices(config: ModelConfig, tensors: dict[str, Tensor]) -> Iterator[tuple[list[Tensor], int, int]]:
    """(parts, rows, columns) of each matrix; parts are padded to whole panels and put one below another."""
    for i in range(config.num_layers):
        for name in MATRICES:
            weight = tensors[f"layers.{i}.{name}.weight"]
            parts = _parts(config, name, weight)
            yield parts, sum(len(part) for part in parts), weight.shape[1]
    embedding = tensors["embedding"]
    yield [_padded(embedding)], wide(len(embedding)), config.hidden_size
    if "head" in tensors:
        yield [_padded(tensors["head"])], wide(len(tensors["head"])), config.hidden_size


def _parts(config: ModelConfig, name: str, rows: Tensor) -> list[Tensor]:
    """Rows (or biases) of a matrix in the order that a pass takes them."""
    if name == "qkv":
        return [_padded(head) for head in torch.split(rows, config.head_dim)]
    if name == "gate_up":
        gate, up = (_padded(half) for half in rows.chunk(2))
        half = GATED_PANELS // 2 * LANES  # what a chunk has of each
        return [part for pair in zip(torch.split(gate, half), torch.split(up, half), strict=True) for part in pair]
    return [_padded(rows)]


def _padded(rows: Tensor) -> Tensor:
    missing = wide(len(rows)) - len(rows)
    return functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)) if missing else rows


def _whole(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _biases(config: ModelConfig, tensors: dict[str, Tensor]) -> tuple[Floats, Ints]:
    offsets = np.full((config.num_layers, len(MATRICES)), -1, np.int64)
    found: list[Tensor] = []
    place = 0
    for i in range(config.num_layers):
        for m, name in enumerate(MATRICES):
            bias = tensors.get(f"layers.{i}.{name}.bias")
            if bias is not None:
                found.append(_whole(_parts(config, name, bias.float())))
                offsets[i, m] = place
                place += len(found[-1])
    return _flat(found), offsets


def _flat(tensors: list[Tensor]) -> Floats:
    return np.concatenate([t.float().reshape(-1).numpy() for t in tensors]) if tensors else np.zeros(0, np.float32)
