"""The decoder that an engine runs on CUDA: packed ragged passes over a paged KV cache, small ones as CUDA graphs.

It asks nothing of the device but torch, and so runs on a CPU, too: there it is what the tests hold to the reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor

from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.decoder import Best, Decoder
from pipeline.engine.device import capability_of, compute_type, require_device_memory
from pipeline.engine.manifest import Limits
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.paged.attention import GatheredAttention, PagedAttention
from pipeline.engine.paged.buckets import MOST_TOKENS, Bucket, Buckets, fit_tokens
from pipeline.engine.paged.flash import FlashAttention, why_not_flash
from pipeline.engine.paged.inputs import PassInputs, pack_inputs
from pipeline.engine.paged.layers import PagedModel
from pipeline.engine.paged.runner import CudaGraphRunner, DirectRunner, PassRunner
from pipeline.kv_cache.page_table import PageTable


class PagedDecoder(Decoder):
    """Weights and KV pool on a device.

    A row's last bits depend on the sizes of the pass that it is computed in, because the device's products do.

    Args:
        config: shape of the model.
        weights: tensors as `weights.fused_tensors` names them, on any device.
        dtype: of the matrices, "float16" or "float32"; on a CPU FP16 matrices are computed with in float32.
        limits: sizes of the engine.
        device: where to.
        graphs: CUDA graphs for small passes.
        runner: of small passes; None: as `graphs` and the device say.
        attention: None takes the library's kernel where it can.

    Raises:
        EngineError: the device has not enough memory.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        dtype: str,
        limits: Limits,
        device: torch.device,
        graphs: bool = True,
        runner: PassRunner | None = None,
        attention: PagedAttention | None = None,
    ) -> None:
        self.config = config
        self.threads = 1
        self.device = device
        kind = compute_type(device, dtype)
        require_device_memory(device, config, weights, kind, limits)
        self.limits = limits
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._scratch = limits.kv_blocks  # one block more than the pool hands out
        max_blocks = -(-limits.max_seq_len // limits.tokens_per_block)
        self.no_flash = why_not_flash(capability_of(device), kind, limits.tokens_per_block, config.head_dim)
        self.attention = attention or (FlashAttention if self.no_flash is None else GatheredAttention)(max_blocks)
        self._buckets = Buckets(limits.max_draft_len + 2, self.attention.fit_blocks)
        self._runner = runner
        if runner is None and graphs:
            self._runner = CudaGraphRunner() if device.type == "cuda" else DirectRunner()
        self._static: dict[Bucket, PassInputs] = {}
        with torch.inference_mode(), self.thread_context():
            head_ids = weights.get("head_ids")
            self.head_ids = None if head_ids is None else head_ids.to(device)
            self._model = PagedModel(config, weights, kind, limits.max_seq_len, device, self.attention)
            shape = (config.num_layers, self._scratch + 1, limits.tokens_per_block, config.num_kv_heads)
            self.keys = torch.zeros(*shape, config.head_dim, dtype=kind, device=device)
            self.values = torch.zeros_like(self.keys)
            # Graphs write to the same place every time, and share it: one pass at a time is looked at.
            largest = MOST_TOKENS if self._runner is not None else 0
            self._logits = torch.empty(largest, len(self._model.head), device=device)
            self._best = torch.empty(largest, dtype=torch.int64, device=device)
        self._found = self._best[:0]

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> Tensor:
        size = self.limits.tokens_per_block
        need = Bucket.of(batch, size)
        bucket = None if self._runner is None else self._buckets.fit(need)
        if bucket is not None:
            try:
                return self._forward_padded(batch, need, bucket)
            except torch.OutOfMemoryError:
                self._buckets.refuse(bucket)
                self._static.pop(bucket, None)
        inputs = PassInputs.exact(batch, need, size, self.device)
        logits = torch.empty(need.wanted, self._logits.shape[1], device=self.device)
        self._found = torch.empty(need.wanted, dtype=torch.int64, device=self.device)
        self._model.compute(inputs, self.keys, self.values, logits, self._found)
        return logits

    def _forward_padded(self, batch: PackedBatch, need: Bucket, bucket: Bucket) -> Tensor:
        """A pass of a bucket's sizes; its logits."""
        if bucket not in self._static:
            self._static[bucket] = PassInputs.empty(bucket, self.device)
        inputs = self._static[bucket]
        inputs.flat.copy_(torch.from_numpy(pack_inputs(batch, bucket, self.limits.tokens_per_block, self._scratch)))
        logits, best = self._logits[: bucket.wanted], self._best[: bucket.wanted]
        assert self._runner is not None
        self._runner.run(bucket, partial(self._model.compute, inputs, self.keys, self.values, logits, best))
        self._found = best[: need.wanted]
        return logits[: need.wanted]

    def best(self) -> Best:
        coded = self._found.tolist()
        return Best([place if place >= 0 else -1 - place for place in coded], [place >= 0 for place in coded])

    @torch.inference_mode()
    def copy_block(self, source: int, destination: int, tokens: int) -> None:
        for pool in (self.keys, self.values):
            pool[:, destination, :tokens] = pool[:, source, :tokens]

    def thread_context(self) -> AbstractContextManager[None]:
        return nullcontext() if self._stream is None else _on(self._stream)

    def prepare(self) -> None:
        """Capture the graphs that every deployment uses: plain decoding and drafting of up to max_requests rows, and a
        lone row's verify of every size. The others are captured when they are first used."""
        if self._runner is None:
            return
        decoding = {fit_tokens(min(rows, MOST_TOKENS)) for rows in range(1, self.limits.max_requests + 1)}
        for rows in sorted(decoding):
            self._warm(min(rows, self.limits.max_requests), 1)
        for drafts in range(1, self.limits.max_draft_len + 1):
            self._warm(1, drafts + 1)

    def _warm(self, rows: int, width: int) -> None:
        """A pass of rows that have no text before them, written to the scratch block."""
        table = PageTable(self.limits.tokens_per_block, [self._scratch] * (width // self.limits.tokens_per_block + 1))
        with self.thread_context():
            self.forward(PackedBatch(tuple(Row((0,) * width, 0, table, width) for _ in range(rows))))


@contextmanager
def _on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Work of this thread goes to `stream`, and is done when the context ends. What was begun before comes first:
    weights may have been made on the stream that the thread had."""
    with torch.cuda.device(stream.device):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield
            stream.synchronize()
