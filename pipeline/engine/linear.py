"""Matrix products of the embedded engine, behind one small interface.

The kernel decides whether speculation pays on a CPU: FBGEMM's packed FP16 reads half the bytes of FP32 and
computes in FP32, so several tokens cost little more than one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional


class Linear(ABC):
    """y = x W^T (+ b), x [tokens, in] float32 -> [tokens, out] float32."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...


class Float32Linear(Linear):
    """Plain FP32 product: the reference."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight.float().contiguous()
        self._bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


class PackedHalfLinear(Linear):
    """FP16 weights packed for FBGEMM, FP32 arithmetic (CPU only)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())
        self._apply = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._apply(x, self._packed)
        return out


class PaddedLinear(Linear):
    """Pads every call to a multiple of `multiple` rows, so that a row's bits do not depend on its neighbours.

    Kernels choose their blocking by row count, which moves last bits; `invariance.row_multiple` finds a multiple
    for which they do not.
    """

    def __init__(self, inner: Linear, multiple: int) -> None:
        self.inner = inner
        self.multiple = multiple

    def __call__(self, x: Tensor) -> Tensor:
        count = x.shape[0]
        missing = -count % self.multiple
        if not missing:
            return self.inner(x)
        return self.inner(torch.cat((x, x.new_zeros(missing, x.shape[1]))))[:count]


def make_linear(weight: Tensor, bias: Tensor | None, dtype: str) -> Linear:
    """The product for a weight dtype of the spec ("float16" or "float32")."""
    return Float32Linear(weight, bias) if dtype == "float32" else PackedHalfLinear(weight, bias)
