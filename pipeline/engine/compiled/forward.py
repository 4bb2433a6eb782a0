"""One forward pass as one program that every compute thread runs.

The pass is a list of phases; a phase is cut into chunks, and a thread takes the next chunk that nobody has. A
phase has ended when its chunks are done, whoever did them: a thread that wakes late delays nobody.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from pipeline.engine.compiled.attention import attend
from pipeline.engine.compiled.layer import (
    DOWN,
    GATED_PANELS,
    OUT,
    embed,
    gated_chunk,
    head_chunk,
    head_chunks,
    projection,
    qkv_head,
)
from pipeline.engine.compiled.products import rms_norm
from pipeline.engine.compiled.tile import LANES
from pipeline.engine.compiled.vector import atomic_load, fetch_add, yield_core

# Phases of a layer; before the first layer comes EMBED, after the last one HEAD.
_QKV, _ATTEND, _OUT, _GATE_UP, _DOWN, _EMBED, _HEAD = range(7)
_PER_LAYER = 5

_SPINS = 4000  # about 10 us: longer than a chunk's tail takes on a free machine


def phases(layers: int) -> int:
    """How many phases a pass has."""
    return _PER_LAYER * layers + 2


@njit(nogil=True)
def _chunks(kind: int, shape: Any, batch: Any) -> Any:
    if kind == _QKV:
        return shape.heads + 2 * shape.kv_heads
    if kind == _ATTEND:
        return batch.tile_first.size * shape.kv_heads
    if kind == _GATE_UP:
        return (2 * shape.inner_wide // LANES + GATED_PANELS - 1) // GATED_PANELS
    if kind == _EMBED:
        return batch.ids.size
    if kind == _HEAD:
        return head_chunks(shape) if batch.wanted.size else 0
    return (shape.hidden_wide // LANES + shape.out_panels - 1) // shape.out_panels


@njit(nogil=True)
def _prepare(kind: int, layer: int, shape: Any, weights: Any, batch: Any, x: Any, normed: Any) -> None:
    """What every thread that takes a chunk computes for itself: less work than waiting for somebody else."""
    size, wide = shape.hidden, shape.hidden_wide
    if kind in (_QKV, _GATE_UP):
        first = (2 * layer + (kind == _GATE_UP)) * size
        for r in range(batch.ids.size):
            rms_norm(x, r * wide, weights.norms, first, size, shape.eps, normed, r * wide)
    elif kind == _HEAD:
        for i in range(batch.wanted.size):
            at = batch.wanted[i] * wide
            rms_norm(x, at, weights.norms, 2 * shape.layers * size, size, shape.eps, normed, i * wide)


@njit(nogil=True)
def _compute(
    kind: int, layer: int, index: int, shape: Any, weights: Any, pool: Any, batch: Any, shared: Any, own: Any
) -> None:
    rows = batch.ids.size
    if kind == _QKV:
        qkv_head(layer, index, shape, weights, pool, batch, shared.q, own)
    elif kind == _ATTEND:
        attend(layer, index, shape, pool, batch, shared.q, shared.mixed, own)
    elif kind == _OUT:
        wide = shape.heads * shape.dim
        projection(layer, OUT, index, shared.mixed, wide, shape, weights, rows, own, shared.x)
    elif kind == _GATE_UP:
        gated_chunk(layer, index, shape, weights, rows, shared.act, own)
    elif kind == _DOWN:
        projection(layer, DOWN, index, shared.act, shape.inner_wide, shape, weights, rows, own, shared.x)
    elif kind == _EMBED:
        embed(index, shape, weights, batch, shared.x)
    else:
        head_chunk(index, shape, weights, batch.wanted.size, shared, own)


@njit(nogil=True, cache=True)
def run_pass(
    thread: int,
    shape: Any,
    weights: Any,
    pool: Any,
    batch: Any,
    shared: Any,
    own: Any,
    taken: Any,
    done: Any,
    left: Any,
) -> None:
    """What one thread does of a pass.

    Args:
        thread: its number.
        own: its working memory.
        taken, done: [phases] int64, zero at the start: chunks taken and chunks finished of each phase.
        left: [threads] int64: passes that each thread has left behind.
    """
    for phase in range(taken.size):
        layer, kind = divmod(phase - 1, _PER_LAYER)
        if phase == 0:
            kind = _EMBED
        elif layer == shape.layers:
            kind = _HEAD
        chunks = _chunks(kind, shape, batch)
        if atomic_load(taken, phase) < chunks:
            # If the phase ends meanwhile, x may change under it, but then no chunk is left that would use it.
            _prepare(kind, layer, shape, weights, batch, shared.x, own.normed)
        index = fetch_add(taken, phase)
        while index < chunks:
            _compute(kind, layer, index, shape, weights, pool, batch, shared, own)
            fetch_add(done, phase)
            index = fetch_add(taken, phase)
        spins = 0
        while atomic_load(done, phase) < chunks:
            spins += 1
            if spins > _SPINS:
                yield_core()
    fetch_add(left, thread)
