"""A decoder of the Llama family as a PyTorch module: written for large batches, and it can be trained.

The engines' `Decoder` packs weights for few tokens at a time and cannot be differentiated. Here products run in a
compute type of their own (BF16 where the processor multiplies it faster), the residual stream stays in FP32.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.engine.model_config import ModelConfig
from pipeline.engine.rope import rotations
from pipeline.engine.weights import CheckpointReader
from pipeline.errors import EngineError

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [rows, heads, n, d], k and v [rows, kv_heads, n, d]) -> [rows, heads, n, d]."""


class RmsNorm(torch.autograd.Function):
    """functional.rms_norm, whose backward pass takes twice the passes over memory on a CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = x.shape[-1]
        scale: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(size).add_(eps).rsqrt_()
        normal = x * scale
        ctx.save_for_backward(normal, scale, weight)
        result: Tensor = normal * weight
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        normal, scale, weight = ctx.saved_tensors
        product = grads[0] * normal
        weight_grad = product.flatten(0, -2).sum(0)
        along = (product @ weight)[..., None].div_(-product.shape[-1])
        return torch.addcmul(grads[0] * weight, normal, along).mul_(scale), weight_grad, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension of x, FP32."""
    if torch.is_grad_enabled() and x.device.type == "cpu":
        normal: Tensor = RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
        return normal
    return functional.rms_norm(x, weight.shape, weight, eps)


class Layer(nn.Module):
    """One decoder layer; projections that read the same input are one matrix."""

    compute_dtype: torch.dtype = torch.float32

    def __init__(self, config: ModelConfig, read: CheckpointReader, number: int) -> None:
        super().__init__()
        old = f"model.layers.{number}."
        attention, mlp = old + "self_attn.", old + "mlp."
        self.config = config
        self.qkv, self.qkv_bias = _joined(read, attention, ("q_proj", "k_proj", "v_proj"))
        self.out, self.out_bias = _joined(read, attention, ("o_proj",))
        self.gate_up, self.gate_up_bias = _joined(read, mlp, ("gate_proj", "up_proj"))
        self.down, self.down_bias = _joined(read, mlp, ("down_proj",))
        self.input_norm = _parameter(read(old + "input_layernorm.weight"))
        self.mlp_norm = _parameter(read(old + "post_attention_layernorm.weight"))
        self.q_norm = _parameter(read(attention + "q_norm.weight")) if config.qk_norm else None
        self.k_norm = _parameter(read(attention + "k_norm.weight")) if config.qk_norm else None

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """x: [rows, n, hidden] FP32; cos, sin: [rows or 1, 1, n, d]."""
        config = self.config
        rows, count, _ = x.shape
        eps = config.rms_norm_eps
        h = rms_norm(x, self.input_norm, eps)
        qkv = self._product(h, self.qkv, self.qkv_bias).view(rows, count, -1, config.head_dim).transpose(1, 2)
        q, k, v = torch.split(qkv, [config.num_heads, config.num_kv_heads, config.num_kv_heads], 1)
        if self.q_norm is not None and self.k_norm is not None:
            q = functional.rms_norm(q, (config.head_dim,), self.q_norm.to(q.dtype), eps)
            k = functional.rms_norm(k, (config.head_dim,), self.k_norm.to(k.dtype), eps)
        mixed = attend(_rotate(q, cos, sin), _rotate(k, cos, sin), v)
        x = x + self._product(mixed.transpose(1, 2).reshape(rows, count, -1), self.out, self.out_bias)
        h = rms_norm(x, self.mlp_norm, eps)
        gate, up = self._product(h, self.gate_up, self.gate_up_bias).chunk(2, -1)
        return x + self._product(functional.silu(gate) * up, self.down, self.down_bias)

    def tensors(self, number: int) -> Iterator[tuple[str, Tensor]]:
        """Names as in a Hugging Face folder, for layer `number`."""
        config, old = self.config, f"model.layers.{number}."
        heads = [n * config.head_dim for n in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        inner = [config.intermediate_size] * 2
        joined = (
            (self.qkv, self.qkv_bias, "self_attn", ("q_proj", "k_proj", "v_proj"), heads),
            (self.out, self.out_bias, "self_attn", ("o_proj",), [config.hidden_size]),
            (self.gate_up, self.gate_up_bias, "mlp", ("gate_proj", "up_proj"), inner),
            (self.down, self.down_bias, "mlp", ("down_proj",), [config.hidden_size]),
        )
        for weight, bias, part, names, sizes in joined:
            for name, piece in zip(names, torch.split(weight, sizes), strict=True):
                yield f"{old}{part}.{name}.weight", piece
            for name, piece in zip(names, () if bias is None else torch.split(bias, sizes), strict=bias is not None):
                yield f"{old}{part}.{name}.bias", piece
        yield old + "input_layernorm.weight", self.input_norm
        yield old + "post_attention_layernorm.weight", self.mlp_norm
        if self.q_norm is not None and self.k_norm is not None:
            yield old + "self_attn.q_norm.weight", self.q_norm
            yield old + "self_attn.k_norm.weight", self.k_norm

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dtype = self.compute_dtype
        return functional.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


class Llama(nn.Module):
    """Layers and final norm of a model folder; the token embedding and the LM head stay outside, they are not trained.

    Args:
        config: shape of the model that is made.
        read: the folder the weights come from.
        layers: which layers of the folder to take, in order.
        positions: longest sequence, in tokens.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, read: CheckpointReader, layers: list[int], positions: int) -> None:
        super().__init__()
        self.config = config
        self._layers = nn.ModuleList(Layer(config, read, number) for number in layers)
        self.norm = _parameter(read("model.norm.weight"))
        angles = rotations(config, positions)[:, 0]  # [positions, d/2]
        self.register_buffer("cos", torch.cat((angles.real, angles.real), -1), persistent=False)
        self.register_buffer("sin", torch.cat((-angles.imag, angles.imag), -1), persistent=False)

    @property
    def layers(self) -> list[Layer]:
        return cast("list[Layer]", list(self._layers))

    def compute_in(self, dtype: torch.dtype, frozen: bool = False) -> None:
        """Multiply in dtype; a frozen model's matrices are stored in it as well."""
        for layer in self.layers:
            layer.compute_dtype = dtype
            for name, parameter in list(layer.named_parameters()):
                if frozen and parameter.dim() > 1:
                    setattr(layer, name, nn.Parameter(parameter.detach().to(dtype), requires_grad=False))
        if frozen:
            self.requires_grad_(False)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states after the final norm.

        Args:
            x: token embeddings [rows, n, hidden] FP32.
            positions: [rows or 1, n] int64.
            attend: attention of every layer.

        Returns:
            [rows, n, hidden] FP32.
        """
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        for number, layer in enumerate(self.layers):
            x = layer(x, cos, sin, lambda q, k, v, number=number: attend(number, q, k, v))
        return rms_norm(x, self.norm, self.config.rms_norm_eps)


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention within the sequences themselves; padding stands behind the text and disturbs nothing."""
    if q.device.type != "cpu" or q.dtype == torch.float32 or not torch.is_grad_enabled():
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # Backward through the fused kernel in BF16 takes twice as long on a CPU as plain products for short texts.
    rows, heads, count, dim = q.shape
    groups = heads // k.shape[1]
    grouped = (q * dim**-0.5).reshape(rows, k.shape[1], groups * count, dim)
    scores = (grouped @ k.transpose(-1, -2)).view(rows, k.shape[1], groups, count, count)
    later = torch.full((count, count), float("-inf"), dtype=q.dtype).triu(1)
    mixed: Tensor = (scores + later).softmax(-1).view(rows, k.shape[1], groups * count, count) @ v
    return mixed.view(rows, heads, count, dim)


def fastest_dtype(device: torch.device) -> torch.dtype:
    """BF16 where it multiplies faster than FP32, by measurement: not every processor with BF16 gains from it."""
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.ones(1024, 1024, dtype=dtype, device=device), torch.ones(1024, 1024, dtype=dtype, device=device)
        for _ in range(3):
            (a @ b)[0, 0].item()
        started = time.perf_counter()
        for _ in range(5):
            (a @ b)[0, 0].item()
        times[dtype] = time.perf_counter() - started
    return torch.bfloat16 if times[torch.bfloat16] < 0.8 * times[torch.float32] else torch.float32


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in Hugging Face's order: dimension i is paired with i + d/2; in FP32, as angles need it."""
    return (x * cos + x.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)


def _joined(read: CheckpointReader, prefix: str, names: tuple[str, ...]) -> tuple[nn.Parameter, nn.Parameter | None]:
    weight = torch.cat([read(f"{prefix}{name}.weight") for name in names])
    if f"{prefix}{names[0]}.bias" not in read:
        return _parameter(weight), None
    return _parameter(weight), _parameter(torch.cat([read(f"{prefix}{name}.bias") for name in names]))


def _parameter(tensor: Tensor) -> nn.Parameter:
    if not tensor.is_floating_point():
        raise EngineError(f"a weight of type {tensor.dtype} cannot be trained; quantised models are not supported")
    return nn.Parameter(tensor.float())
