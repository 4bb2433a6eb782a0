"""What a pass is given: flat arrays and the numbers that index them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Shape(NamedTuple):
    """Sizes of a model; `_wide` ones are padded to a multiple of LANES."""

    layers: int
    hidden: int
    hidden_wide: int
    inner: int
    inner_wide: int
    heads: int
    kv_heads: int
    dim: int
    dim_wide: int
    vocab: int  # outputs of the head
    vocab_wide: int
    out_panels: int  # panels per chunk of the output and down projections
    eps: np.float32
    scale: np.float32  # of attention scores


class Weights(NamedTuple):
    """Packed matrices one behind another, and where each begins; norms and biases in float32.

    Attributes:
        matrices: uint16 (FP16 bits) or float32.
        offsets: [layers, 4] of qkv, out, gate_up, down.
        embedding, head: offsets.
        norms: [layers, 2, hidden], then the last one.
        head_norms: [layers, 2, dim] of queries and keys; empty where the model has none.
        biases: flat.
        bias_offsets: [layers, 4], -1 for none.
        turns: [positions, dim] cosine and sine, alternating.
    """

    matrices: Any
    offsets: Any
    embedding: int
    head: int
    norms: Any
    head_norms: Any
    biases: Any
    bias_offsets: Any
    turns: Any


class Pool(NamedTuple):
    """The KV pool, float32.

    Attributes:
        keys: [layers, blocks, kv_heads, dim, lanes]: tokens side by side, so that scores need no sum over lanes.
        values: [layers, blocks, kv_heads, tokens, dim_wide].
        tokens: of a block.
        lanes: tokens padded to a multiple of LANES.
    """

    keys: Any
    values: Any
    blocks: int
    tokens: int
    lanes: int


class Batch(NamedTuple):
    """What a pass computes; all int64.

    Attributes:
        ids, positions, slots: [tokens]; slots into the KV pool.
        tile_first, tile_count, tile_start, tile_table: [tiles] of attention: tokens of one request, the position
            of the first, and where in `tables` the request's blocks begin.
        tables: block numbers of all requests.
        wanted: tokens that need logits.
    """

    ids: Any
    positions: Any
    slots: Any
    tile_first: Any
    tile_count: Any
    tile_start: Any
    tile_table: Any
    tables: Any
    wanted: Any


class Buffers(NamedTuple):
    """Working memory that the threads share, flat float32 but for best_at."""

    x: Any  # [tokens, hidden_wide]
    q: Any  # [tokens, heads, dim_wide]
    mixed: Any  # [tokens, heads * dim]
    act: Any  # [tokens, inner_wide]
    logits: Any  # [wanted, vocab_wide]
    best: Any  # [wanted, head chunks] largest logit of each chunk; NaN where the chunk holds one
    best_at: Any  # [wanted, head chunks] int64, which output of the head it is


class Own(NamedTuple):
    """Working memory of one thread, flat float32."""

    normed: Any  # [tokens, hidden_wide]
    chunk: Any  # [tokens, widest chunk]
    scores: Any  # [rows of a tile, longest text]
    part: Any  # [2, rows of a tile, dim_wide]
