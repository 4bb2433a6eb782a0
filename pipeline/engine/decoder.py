"""One forward pass of a Llama-family decoder over a packed ragged batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psutil
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.engine.attention import PagedAttention
from pipeline.engine.batch import PackedBatch
from pipeline.engine.invariance import row_multiple
from pipeline.engine.linear import Linear, PaddedLinear, make_linear
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.rope import rotations
from pipeline.errors import EngineError


@dataclass(frozen=True)
class _Layer:
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    input_norm: Tensor
    mlp_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None


class Decoder:
    """Weights and KV pool of one model.

    Args:
        config: shape of the model.
        weights: tensors as `weights.fused_tensors` names them.
        dtype: "float16" (packed) or "float32".
        max_seq_len: positions to prepare.
        kv_slots: tokens the KV pool holds.
        deterministic: make the bits of a token independent of what is computed beside it.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        dtype: str,
        max_seq_len: int,
        kv_slots: int,
        deterministic: bool = False,
    ) -> None:
        self.config = config
        self.row_multiple = 1
        needed = PagedAttention.bytes_needed(config.num_layers, kv_slots, config.num_kv_heads, config.head_dim)
        available = psutil.virtual_memory().available
        if needed > available:
            raise EngineError(
                f"a KV pool of {kv_slots} tokens needs {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB of memory are "
                "available; lower kv_blocks"
            )
        self.attention = PagedAttention(
            config.num_layers, kv_slots, config.num_kv_heads, config.head_dim, token_by_token=deterministic
        )
        self._embedding = weights["embedding"]
        self._norm = weights["norm"]
        self.head_ids = weights.get("head_ids")
        head = weights.get("head", self._embedding)
        self._head = make_linear(head, None, dtype)
        self._rotations = rotations(config, max_seq_len)
        self._eps = config.rms_norm_eps

        def linear(name: str) -> Linear:
            return make_linear(weights[name + ".weight"], weights.get(name + ".bias"), dtype)

        self._layers = [
            _Layer(
                qkv=linear(f"layers.{i}.qkv"),
                out=linear(f"layers.{i}.out"),
                gate_up=linear(f"layers.{i}.gate_up"),
                down=linear(f"layers.{i}.down"),
                input_norm=weights[f"layers.{i}.input_norm"],
                mlp_norm=weights[f"layers.{i}.mlp_norm"],
                q_norm=weights.get(f"layers.{i}.q_norm"),
                k_norm=weights.get(f"layers.{i}.k_norm"),
            )
            for i in range(config.num_layers)
        ]
        if deterministic:
            self._pad_products()

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> Tensor:
        """Compute a batch: writes its KV, returns the logits its rows ask for.

        Returns:
            [batch.num_logits, head width] float32, rows in batch order.
        """
        config = self.config
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        first = 0
        for row in batch.rows:
            count = len(row.tokens)
            ids.extend(row.tokens)
            positions.extend(range(row.start, row.start + count))
            wanted.extend(range(first + count - row.logits, first + count))
            first += count
        plan = self.attention.plan(batch)
        cis = self._rotations[torch.tensor(positions)]
        x = self._embedding[torch.tensor(ids)].float()
        shape = (config.hidden_size,)
        for i, layer in enumerate(self._layers):
            h = functional.rms_norm(x, shape, layer.input_norm, self._eps)
            qkv = layer.qkv(h).view(-1, heads + 2 * kv_heads, dim)
            qk = qkv[:, : heads + kv_heads]
            if layer.q_norm is not None:
                qk[:, :heads] = functional.rms_norm(qk[:, :heads], (dim,), layer.q_norm, self._eps)
                qk[:, heads:] = functional.rms_norm(qk[:, heads:], (dim,), layer.k_norm, self._eps)
            torch.view_as_complex(qk.view(*qk.shape[:2], -1, 2)).mul_(cis)
            mixed = self.attention.attend(
                i, qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :], plan
            )
            x.add_(layer.out(mixed))
            h = functional.rms_norm(x, shape, layer.mlp_norm, self._eps)
            gate, up = layer.gate_up(h).chunk(2, -1)
            x.add_(layer.down(functional.silu(gate).mul_(up)))
        if not wanted:
            return x.new_empty(0, self._head_width)
        if len(wanted) < x.shape[0]:
            x = x[torch.tensor(wanted)]
        return self._head(functional.rms_norm(x, shape, self._norm, self._eps))

    def _pad_products(self) -> None:
        first = self._layers[0]
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        attended = self.config.num_heads * self.config.head_dim
        products = [(first.qkv, hidden), (first.out, attended), (first.gate_up, hidden), (first.down, inner)]
        multiple = row_multiple([*products, (self._head, hidden)])
        if multiple is None:
            raise EngineError("deterministic: no row count makes the products of this machine independent of the batch")
        self.row_multiple = multiple
        if multiple == 1:
            return
        self._head = PaddedLinear(self._head, multiple)
        self._layers = [
            replace(
                layer,
                qkv=PaddedLinear(layer.qkv, multiple),
                out=PaddedLinear(layer.out, multiple),
                gate_up=PaddedLinear(layer.gate_up, multiple),
                down=PaddedLinear(layer.down, multiple),
            )
            for layer in self._layers
        ]

    @property
    def _head_width(self) -> int:
        return self.config.vocab_size if self.head_ids is None else self.head_ids.shape[0]
