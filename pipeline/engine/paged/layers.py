"""The forward pass of a Llama-family decoder in torch, on any device.

Matrices keep the engine's type; everything between products is float32, as in the compiled CPU pass. On CUDA a
product of FP16 numbers accumulates and returns float32 (`torch.mm` with out_dtype), so that residuals and logits are
never rounded to 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.engine.model_config import ModelConfig
from pipeline.engine.paged.attention import PagedAttention, Pass
from pipeline.engine.paged.inputs import PassInputs
from pipeline.engine.rope import rotations
from pipeline.sampling.vocabulary import row_argmax


@dataclass(frozen=True, eq=False)
class Projection:
    """A matrix [out, in], and a float32 bias [out] or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] of any float type -> [n, out] float32."""
        out = product(x, self.weight)
        return out if self.bias is None else out + self.bias


@dataclass(frozen=True, eq=False)
class Layer:
    """Weights of one layer; norms float32, those of the heads None where the model has none."""

    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection
    input_norm: Tensor
    mlp_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None


class PagedModel:
    """Weights on a device.

    Args:
        config: shape of the model.
        tensors: as `weights.fused_tensors` names them, on any device.
        dtype: of the matrices and the KV pool.
        positions: of the rotary embedding.
        device: where the pass runs.
        attention: how it attends.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: dict[str, Tensor],
        dtype: torch.dtype,
        positions: int,
        device: torch.device,
        attention: PagedAttention,
    ) -> None:
        self._config = config
        self._dtype = dtype
        self._attention = attention

        def matrix(name: str) -> Tensor:
            return tensors[name].to(device, dtype)

        def vector(name: str) -> Tensor | None:
            return tensors[name].to(device, torch.float32) if name in tensors else None

        def norm(name: str) -> Tensor:
            return tensors[name].to(device, torch.float32)

        def projection(name: str) -> Projection:
            return Projection(matrix(f"{name}.weight"), vector(f"{name}.bias"))

        self._layers = [
            Layer(
                **{name: projection(f"layers.{i}.{name}") for name in ("qkv", "out", "gate_up", "down")},
                input_norm=norm(f"layers.{i}.input_norm"),
                mlp_norm=norm(f"layers.{i}.mlp_norm"),
                q_norm=vector(f"layers.{i}.q_norm"),
                k_norm=vector(f"layers.{i}.k_norm"),
            )
            for i in range(config.num_layers)
        ]
        self._embedding = matrix("embedding")
        self.head = matrix("head") if "head" in tensors else self._embedding
        self._norm = norm("norm")
        self._turns = rotations(config, positions).to(device)

    def compute(self, inputs: PassInputs, keys: Tensor, values: Tensor, logits: Tensor, best: Tensor) -> None:
        """One pass; writes the new tokens' KV, the logits and what is the largest of each row.

        Args:
            inputs: the batch.
            keys, values: the pool, [layers, blocks, tokens_per_block, kv_heads, dim].
            logits: [wanted, head width] float32, written.
            best: [wanted] int64, written: the place p of the largest logit, or -1 - p where it is not finite.
        """
        config, views = self._config, inputs.views()
        index = {name: views[name].long() for name in ("ids", "positions", "slots", "wanted", "take", "place", "table")}
        of = Pass(inputs, views, index["take"], index["place"], index["table"])
        turns = self._turns[index["positions"]]
        x = self._embedding[index["ids"]].float()
        sizes = [config.num_heads * config.head_dim, *[config.num_kv_heads * config.head_dim] * 2]
        for i, layer in enumerate(self._layers):
            h = self._normed(x, layer.input_norm)
            q, k, v = (part.reshape(len(x), -1, config.head_dim) for part in torch.split(layer.qkv(h), sizes, 1))
            q, k = self._turned(q, layer.q_norm, turns), self._turned(k, layer.k_norm, turns)
            keys[i].flatten(0, 1).index_copy_(0, index["slots"], k.to(self._dtype))
            values[i].flatten(0, 1).index_copy_(0, index["slots"], v.to(self._dtype))
            mixed = self._attention.run(q.to(self._dtype), keys[i], values[i], of)
            x = x + layer.out(mixed.flatten(1))
            gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, 1)
            x = x + layer.down((functional.silu(gate) * up).to(self._dtype))
        if not inputs.bucket.wanted:
            return
        product(self._normed(x[index["wanted"]], self._norm), self.head, logits)
        place = row_argmax(logits)
        finite = torch.isfinite(logits.gather(1, place[:, None])[:, 0])
        best.copy_(torch.where(finite, place, -1 - place))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self._config.rms_norm_eps).to(self._dtype)

    def _turned(self, x: Tensor, norm: Tensor | None, turns: Tensor) -> Tensor:
        """Heads [tokens, heads, dim], normed where the model does that, at their positions."""
        if norm is not None:
            x = functional.rms_norm(x, norm.shape, norm, self._config.rms_norm_eps)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:2], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(2)


def product(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """x [n, in] times the transpose of weight [out, in], as [n, out] float32."""
    if weight.dtype == torch.float32:
        return torch.mm(x, weight.T, out=out)
    # Only CUDA has products that return more bits than they are given.
    if out is None:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    return torch.mm(x, weight.T, out_dtype=torch.float32, out=out)
