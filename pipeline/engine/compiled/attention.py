"""Attention over the paged KV pool (Kwon et al., arXiv 2309.06180), a tile of tokens at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from pipeline.engine.compiled.products import exponential, multiply
from pipeline.engine.compiled.tile import LANES
from pipeline.engine.compiled.vector import largest, total

_ZERO, _NEVER = np.float32(0.0), np.float32("-inf")


@njit(nogil=True, error_model="numpy")
def attend(layer: int, item: int, shape: Any, pool: Any, batch: Any, q: Any, mixed: Any, own: Any) -> None:
    """One tile with the query heads that share one KV head (Ainslie et al., arXiv 2305.13245).

    Keys and values are read once for all of them. A token's sums run over its own history in order, whatever
    else is in the tile.

    Args:
        item: tile * kv_heads + KV head.
        q: queries, scaled.
        mixed: where the weighted values go.
    """
    tile, kv = divmod(item, shape.kv_heads)
    share = shape.heads // shape.kv_heads
    first, count = batch.tile_first[tile], batch.tile_count[tile]
    start, table = batch.tile_start[tile], batch.tile_table[tile]
    rows, wide = count * share, shape.dim_wide
    longest = start + count
    blocks = (longest + pool.tokens - 1) // pool.tokens
    stride = blocks * pool.lanes
    scores, part = own.scores, own.part
    output = rows * wide
    for r in range(rows):
        begin = ((first + r // share) * shape.heads + kv * share + r % share) * wide
        for i in range(shape.dim):
            part[r * wide + i] = q[begin + i]
    for b in range(blocks):
        place = ((layer * pool.blocks + batch.tables[table + b]) * shape.kv_heads + kv) * shape.dim * pool.lanes
        keys = (pool.keys, place, LANES, pool.lanes)
        multiply((part, 0, wide), rows, keys, shape.dim, pool.lanes // LANES, False, (scores, b * pool.lanes, stride))
    for r in range(rows):
        # The sum goes where the query was: it is not needed any more.
        part[r * wide] = _softmax_weights(scores, r * stride, blocks, pool.lanes, pool.tokens, start + r // share + 1)
    for b in range(blocks):
        place = ((layer * pool.blocks + batch.tables[table + b]) * shape.kv_heads + kv) * pool.tokens * wide
        # Not one slot more: nobody has written it, or somebody else has.
        held = min(pool.tokens, longest - b * pool.tokens)
        weights = (scores, b * pool.lanes, stride)
        multiply(weights, rows, (pool.values, place, LANES, wide), held, wide // LANES, b > 0, (part, output, wide))
    for r in range(rows):
        to = ((first + r // share) * shape.heads + kv * share + r % share) * shape.dim
        for i in range(shape.dim):
            mixed[to + i] = part[output + r * wide + i] / part[r * wide]


@njit(nogil=True, error_model="numpy")
def _softmax_weights(scores: Any, first: int, blocks: int, lanes: int, tokens: int, length: int) -> Any:
    """e^(score - largest) in place for the first `length` tokens, 0 elsewhere; returns the sum.

    Args:
        scores: `blocks` runs of `lanes` scores; a run holds `tokens` tokens.
    """
    _fill_rest(scores, first, blocks, lanes, tokens, length, _NEVER)
    top = largest(scores, first, blocks * lanes)
    for i in range(blocks * lanes):
        scores[first + i] = exponential(scores[first + i] - top)
    _fill_rest(scores, first, blocks, lanes, tokens, length, _ZERO)
    return total(scores, first, blocks * lanes)


@njit(nogil=True, error_model="numpy")
def _fill_rest(scores: Any, first: int, blocks: int, lanes: int, tokens: int, length: int, value: Any) -> None:
    for block in range(blocks):
        for j in range(min(max(length - block * tokens, 0), tokens), lanes):
            scores[first + block * lanes + j] = value
