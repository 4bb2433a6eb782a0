"""Products of packed weights, row by row reductions and activations: loops that numba compiles.

Vectors are rows of flat float32 arrays, each row padded to a multiple of LANES; an operand is (array, offset of
the first element, elements from row to row). Division is numpy's: Python's asks for zero first, and LLVM does not
vectorise a loop that may raise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pipeline.engine.compiled.tile import LANES, MAX_ROWS, WIDEST, tile
from pipeline.engine.compiled.vector import float_from_bits, sum_of_squares

_WIDEST = np.array(WIDEST, np.int64)

_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)  # few bits: n times it is exact
_LN2_LOW = np.float32(-2.12194440e-4)
_LOWEST, _HIGHEST = np.float32(-87.0), np.float32(88.0)  # e to it is a normal float32
_TAYLOR = tuple(np.float32(1.0 / k) for k in (720.0, 120.0, 24.0, 6.0, 2.0))
_HALF, _ONE = np.float32(0.5), np.float32(1.0)


@njit(nogil=True, error_model="numpy")
def multiply(x: Any, rows: int, w: Any, depth: int, panels: int, keep: bool, out: Any) -> None:
    """out[r, j] (+)= sum over k of x[r, k] * w[panel, k, lane], j = panel * LANES + lane.

    Args:
        x, out: (array, offset, elements from row to row).
        w: (array, offset, elements from panel to panel, elements from k to k + 1).
        keep: add to what `out` holds.
    """
    x_array, x_first, x_stride = x
    w_array, w_first, w_stride, w_step = w
    out_array, out_first, out_stride = out
    panel = 0
    while panel < panels:
        width = min(_WIDEST[min(rows, MAX_ROWS)], panels - panel)
        weights = (w_array, w_first + panel * w_stride, w_stride, w_step)
        # All rows before the next panels: these weights are in the cache now.
        for row in range(0, rows, MAX_ROWS):
            count = min(MAX_ROWS, rows - row)
            at = (x_array, x_first + row * x_stride, x_stride)
            to = (out_array, out_first + row * out_stride + panel * LANES, out_stride)
            tile(count, width, keep, at, weights, depth, to)
        panel += width


@njit(nogil=True, inline="always")
def exponential(x: Any) -> Any:
    """e^x in float32, within 2 units in the last place; NaN stays NaN. Plain arithmetic, so that LLVM vectorises it."""
    x = _LOWEST if x < _LOWEST else x
    x = _HIGHEST if x > _HIGHEST else x
    n = np.floor(x * _LOG2_E + _HALF)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = _TAYLOR[0] * r + _TAYLOR[1]
    p = p * r + _TAYLOR[2]
    p = p * r + _TAYLOR[3]
    p = p * r + _TAYLOR[4]
    p = p * r * r + r + _ONE
    return p * float_from_bits(np.int32((np.int32(n) + np.int32(127)) << 23))


@njit(nogil=True, error_model="numpy")
def rms_norm(x: Any, first: int, weight: Any, weight_first: int, size: int, eps: Any, out: Any, to: int) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight over `size` numbers (Zhang and Sennrich, arXiv 1910.07467).

    x is padded with zeros to a multiple of LANES.
    """
    padded = (size + LANES - 1) // LANES * LANES
    scale = _ONE / np.sqrt(sum_of_squares(x, first, padded) / np.float32(size) + eps)
    for i in range(size):
        out[to + i] = x[first + i] * scale * weight[weight_first + i]


@njit(nogil=True, error_model="numpy")
def rotate(x: Any, first: int, turns: Any, turn: int, dim: int) -> None:
    """Rotary embedding in place: pairs (x[2i], x[2i + 1]) as complex numbers times turns[i]."""
    for i in range(0, dim, 2):
        a, b = x[first + i], x[first + i + 1]
        c, s = turns[turn + i], turns[turn + i + 1]
        x[first + i] = a * c - b * s
        x[first + i + 1] = a * s + b * c


@njit(nogil=True, error_model="numpy")
def silu(x: Any, first: int, count: int) -> None:
    """x / (1 + e^-x) in place."""
    for i in range(first, first + count):
        x[i] = x[i] / (_ONE + exponential(-x[i]))
