"""The decoder that a CPU engine runs: one compiled program per pass."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.engine.batch import PackedBatch
from pipeline.engine.compiled.arrays import Batch, Buffers, Own, Pool
from pipeline.engine.compiled.layer import GATED_PANELS, head_chunks
from pipeline.engine.compiled.memory import zeros
from pipeline.engine.compiled.packing import pack, shape_of, wide
from pipeline.engine.compiled.team import Team
from pipeline.engine.compiled.tile import LANES, MAX_ROWS
from pipeline.engine.decoder import Best, Decoder, require_pool_memory
from pipeline.engine.model_config import ModelConfig


class CompiledDecoder(Decoder):
    """Weights in panels, KV in blocks, and threads of its own.

    A row's bits depend on its own history alone: neither on what is computed beside it, nor on how a prefill is
    cut, nor on the number of threads.

    Args:
        config: shape of the model.
        weights: tensors as `weights.fused_tensors` names them.
        dtype: of the matrices, "float16" or "float32"; arithmetic is FP32.
        max_seq_len: positions to prepare.
        kv_blocks, tokens_per_block: of the KV pool.
        threads: 0 takes every core this process may use.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        dtype: str,
        max_seq_len: int,
        kv_blocks: int,
        tokens_per_block: int,
        threads: int = 0,
    ) -> None:
        self.config = config
        self.head_ids = weights.get("head_ids")
        self._head_width = len(weights.get("head", weights["embedding"]))
        lanes, dim = wide(tokens_per_block), wide(config.head_dim)
        per_block = config.num_layers * config.num_kv_heads * (config.head_dim * lanes + tokens_per_block * dim)
        require_pool_memory(4 * kv_blocks * per_block, kv_blocks * tokens_per_block)
        heads = kv_blocks * config.num_layers * config.num_kv_heads
        self._pool = Pool(
            keys=zeros(heads * config.head_dim * lanes, np.float32),
            values=zeros(heads * tokens_per_block * dim, np.float32),
            blocks=kv_blocks,
            tokens=tokens_per_block,
            lanes=lanes,
        )
        self.threads = threads or len(os.sched_getaffinity(0))
        self._shape = shape_of(config, self._head_width, self.threads)
        self._weights = pack(config, weights, dtype, max_seq_len)
        self._team = Team(self.threads, config.num_layers)
        self._tile_tokens = max(1, MAX_ROWS // (config.num_heads // config.num_kv_heads))
        self._wanted = 0
        self._room = (0, 0)
        self._make_room(1, tokens_per_block)

    def forward(self, batch: PackedBatch) -> Tensor:
        plan, longest = self._plan(batch)
        self._make_room(len(plan.ids), longest)
        self._team.run(self._shape, self._weights, self._pool, plan, self._shared, self._own)
        self._wanted = count = len(plan.wanted)
        width = self._shape.vocab_wide
        return torch.from_numpy(self._shared.logits[: count * width]).view(count, width)[:, : self._head_width]

    def best(self) -> Best:
        chunks = head_chunks(self._shape)
        tops = self._shared.best[: self._wanted * chunks].reshape(self._wanted, chunks)
        # NaN counts as largest here, so that a row that holds one shows it.
        found = tops.argmax(1) if self._wanted else np.zeros(0, np.int64)
        row = np.arange(self._wanted)
        places = self._shared.best_at[: tops.size].reshape(tops.shape)[row, found]
        return Best(places.tolist(), np.isfinite(tops[row, found]).tolist())

    def copy_block(self, source: int, destination: int, tokens: int) -> None:
        config, pool = self.config, self._pool
        heads = (config.num_layers, pool.blocks, config.num_kv_heads)
        keys = pool.keys.reshape(*heads, config.head_dim, pool.lanes)
        values = pool.values.reshape(*heads, pool.tokens, wide(config.head_dim))
        keys[:, destination, :, :, :tokens] = keys[:, source, :, :, :tokens]
        values[:, destination, :, :tokens] = values[:, source, :, :tokens]

    def close(self) -> None:
        self._team.close()

    def _plan(self, batch: PackedBatch) -> tuple[Batch, int]:
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        wanted: list[int] = []
        tables: list[int] = []
        tiles: list[tuple[int, int, int, int]] = []
        longest = 0
        for row in batch.rows:
            first, count = len(ids), len(row.tokens)
            end = row.start + count
            ids += row.tokens
            positions += range(row.start, end)
            slots += row.table.slots(row.start, count)
            wanted += range(first + count - row.logits, first + count)
            step = self._tile_tokens
            tiles += [(first + i, min(step, count - i), row.start + i, len(tables)) for i in range(0, count, step)]
            tables += row.table.blocks[: -(-end // self._pool.tokens)]
            longest = max(longest, end)
        first, count, start, table = np.array(tiles, np.int64).T.copy()
        flat = [np.array(values, np.int64) for values in (ids, positions, slots, tables, wanted)]
        return Batch(flat[0], flat[1], flat[2], first, count, start, table, flat[3], flat[4]), longest

    def _make_room(self, tokens: int, longest: int) -> None:
        """Working memory is kept from pass to pass: fresh memory costs a page fault for every 4 KB."""
        had_tokens, had_longest = self._room
        if tokens <= had_tokens and longest <= had_longest:
            return
        # Doubling, so that an answer that grows token by token seldom asks for more.
        self._room = tokens, longest = max(tokens, had_tokens), max(2 * longest, had_longest)
        shape = self._shape
        tile_rows = min(self._tile_tokens, tokens) * (shape.heads // shape.kv_heads)
        blocks = -(-longest // self._pool.tokens)
        chunk = max(shape.dim_wide, shape.out_panels * LANES, GATED_PANELS * LANES)
        self._shared = Buffers(
            x=_floats(tokens, shape.hidden_wide),
            q=_floats(tokens, shape.heads * shape.dim_wide),
            mixed=_floats(tokens, shape.heads * shape.dim),
            act=_floats(tokens, shape.inner_wide),
            logits=_floats(tokens, shape.vocab_wide),
            best=_floats(tokens, head_chunks(shape)),
            best_at=np.zeros(tokens * head_chunks(shape), np.int64),
        )
        self._own = [
            Own(
                normed=_floats(tokens, shape.hidden_wide),
                chunk=_floats(tokens, chunk),
                scores=_floats(tile_rows, blocks * self._pool.lanes),
                part=_floats(2 * tile_rows, shape.dim_wide),
            )
            for _ in range(self.threads)
        ]


def _floats(rows: int, columns: int) -> npt.NDArray[np.float32]:
    return np.zeros(rows * columns, np.float32)
