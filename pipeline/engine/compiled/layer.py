"""The parts of a layer that are computed at once: a product and what can be done with its result while it is hot."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pipeline.engine.compiled.products import multiply, rms_norm, rotate, silu
from pipeline.engine.compiled.tile import LANES
from pipeline.engine.compiled.vector import half_to_float, largest, total

QKV, OUT, GATE_UP, DOWN = range(4)
GATED_PANELS = 4  # two of gate, then two of up
HEAD_PANELS = 8
_NEVER, _NAN = np.float32("-inf"), np.float32("nan")


@njit(nogil=True)
def embed(token: int, shape: Any, weights: Any, batch: Any, x: Any) -> None:
    """x[token] = its row of the embedding, which lies in panels as the LM head does."""
    row = batch.ids[token]
    begin = weights.embedding + (row // LANES) * shape.hidden * LANES + row % LANES
    for i in range(shape.hidden):
        x[token * shape.hidden_wide + i] = half_to_float(weights.matrices[begin + i * LANES])


@njit(nogil=True)
def qkv_head(layer: int, head: int, shape: Any, weights: Any, pool: Any, batch: Any, q: Any, own: Any) -> None:
    """One head of queries, keys or values of every token: product, norm, rotation, and its place."""
    dim, wide, rows = shape.dim, shape.dim_wide, batch.ids.size
    chunk = own.chunk
    _product(
        layer, QKV, head * (wide // LANES), wide // LANES, own.normed, shape.hidden_wide, shape, weights, rows, chunk
    )
    kv = head - shape.heads
    is_value = kv >= shape.kv_heads
    for r in range(rows):
        at = r * wide
        if not is_value:
            if weights.head_norms.size:
                kind = 0 if kv < 0 else 1
                rms_norm(chunk, at, weights.head_norms, (layer * 2 + kind) * dim, dim, shape.eps, chunk, at)
            rotate(chunk, at, weights.turns, batch.positions[r] * dim, dim)
        if kv < 0:
            to = (r * shape.heads + head) * wide
            for i in range(dim):
                q[to + i] = chunk[at + i] * shape.scale
            continue
        block, token = divmod(batch.slots[r], pool.tokens)
        if is_value:
            to = (((layer * pool.blocks + block) * shape.kv_heads + kv - shape.kv_heads) * pool.tokens + token) * wide
            for i in range(dim):
                pool.values[to + i] = chunk[at + i]
        else:
            to = ((layer * pool.blocks + block) * shape.kv_heads + kv) * dim * pool.lanes + token
            for i in range(dim):
                pool.keys[to + i * pool.lanes] = chunk[at + i]


@njit(nogil=True)
def gated_chunk(layer: int, index: int, shape: Any, weights: Any, rows: int, act: Any, own: Any) -> None:
    """act = silu(gate) * up for one chunk of both."""
    panel = index * GATED_PANELS
    panels = min(GATED_PANELS, 2 * shape.inner_wide // LANES - panel)
    width = panels * LANES
    _product(layer, GATE_UP, panel, panels, own.normed, shape.hidden_wide, shape, weights, rows, own.chunk)
    half = width // 2
    for r in range(rows):
        at, to = r * width, r * shape.inner_wide + panel // 2 * LANES
        silu(own.chunk, at, half)
        for i in range(half):
            act[to + i] = own.chunk[at + i] * own.chunk[at + half + i]


@njit(nogil=True)
def projection(
    layer: int, matrix: int, index: int, x: Any, x_wide: int, shape: Any, weights: Any, rows: int, own: Any, out: Any
) -> None:
    """out += x W^T for one chunk of outputs: of attention (OUT) or of the feed-forward part (DOWN)."""
    panel = index * shape.out_panels
    panels = min(shape.out_panels, shape.hidden_wide // LANES - panel)
    width = panels * LANES
    _product(layer, matrix, panel, panels, x, x_wide, shape, weights, rows, own.chunk)
    for r in range(rows):
        for j in range(width):
            out[r * shape.hidden_wide + panel * LANES + j] += own.chunk[r * width + j]


@njit(nogil=True)
def head_chunks(shape: Any) -> Any:
    """Into how many chunks the vocabulary is cut."""
    return (shape.vocab_wide // LANES + HEAD_PANELS - 1) // HEAD_PANELS


@njit(nogil=True)
def head_chunk(index: int, shape: Any, weights: Any, wanted: int, shared: Any, own: Any) -> None:
    """Logits of one chunk of the vocabulary, and the largest of them while they are at hand."""
    panel = index * HEAD_PANELS
    panels = min(HEAD_PANELS, shape.vocab_wide // LANES - panel)
    depth = shape.hidden
    matrix = (weights.matrices, weights.head + panel * depth * LANES, depth * LANES, LANES)
    first, width = panel * LANES, panels * LANES
    out = (shared.logits, first, shape.vocab_wide)
    multiply((own.normed, 0, shape.hidden_wide), wanted, matrix, depth, panels, False, out)
    chunks = head_chunks(shape)
    for r in range(wanted):
        at = r * shape.vocab_wide + first
        for i in range(shape.vocab - first, width):  # padding is no token
            shared.logits[at + i] = _NEVER
        top = largest(shared.logits, at, width)
        where = 0
        while where < width - 1 and shared.logits[at + where] != top:
            where += 1
        # A sum is NaN where a number is, and also where +inf meets -inf: +inf is as bad.
        if np.isnan(total(shared.logits, at, width)):
            top = _NAN
        shared.best[r * chunks + index] = top
        shared.best_at[r * chunks + index] = first + where


@njit(nogil=True)
def _product(
    layer: int,
    matrix: int,
    panel: int,
    panels: int,
    x: Any,
    x_wide: int,
    shape: Any,
    weights: Any,
    rows: int,
    chunk: Any,
) -> None:
    """chunk [rows, panels * LANES] = x W^T + bias."""
    depth = shape.hidden
    if matrix == OUT:
        depth = shape.heads * shape.dim
    elif matrix == DOWN:
        depth = shape.inner
    width = panels * LANES
    place = weights.offsets[layer, matrix] + panel * depth * LANES
    packed = (weights.matrices, place, depth * LANES, LANES)
    multiply((x, 0, x_wide), rows, packed, depth, panels, False, (chunk, 0, width))
    begin = weights.bias_offsets[layer, matrix]
    if begin >= 0:
        for r in range(rows):
            for j in range(width):
                chunk[r * width + j] += weights.biases[begin + panel * LANES + j]
