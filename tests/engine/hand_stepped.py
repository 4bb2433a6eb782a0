"""An engine whose passes a test makes one by one."""

from __future__ import annotations

from concurrent.futures import Future

import torch
from tiny_models import LIMITS, TinyModel, make_decoder

from pipeline.engine.batch import PackedBatch
from pipeline.engine.call import Call
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.step import StepRequest, StepResult
from pipeline.kv_cache.cache import KvCache


class Engine:
    """A scheduler that is stepped by hand, and the rows of each of its passes."""

    def __init__(self, folder: TinyModel, blocks: int = 48, max_calls: int = 8, budget: int = 512) -> None:
        self.decoder = make_decoder(folder.folder, blocks=blocks)
        self.kv = KvCache(blocks, LIMITS.tokens_per_block, self.decoder.copy_block)
        self.scheduler = Scheduler(self.decoder, self.kv, max_calls, budget)
        self.rows: list[list[tuple[int, int]]] = []  # (start, tokens) of each row of a pass
        self.batches: list[PackedBatch] = []
        forward = self.decoder.forward

        def recorded(batch: PackedBatch) -> torch.Tensor:
            self.batches.append(batch)
            self.rows.append([(row.start, len(row.tokens)) for row in batch.rows])
            return forward(batch)

        self.decoder.forward = recorded  # type: ignore[method-assign]

    def call(self, tokens: tuple[int, ...], new: int, rule: str = "block", **options: object) -> Call:
        """A call that is queued."""
        name = options.pop("request_id", "r")
        request = StepRequest(name, tokens, new, **options)  # type: ignore[arg-type]
        call = Call(request, rule, Future(), request.draft_ids)
        self.scheduler.add(call)
        return call

    def add(self, tokens: tuple[int, ...], new: int, **options: object) -> Future[StepResult]:
        return self.call(tokens, new, **options).future  # type: ignore[arg-type]

    def run(self, future: Future[StepResult]) -> tuple[int, ...]:
        while not future.done():
            self.step()
        return future.result().output_ids

    def step(self) -> None:
        with torch.inference_mode():
            self.scheduler.step()

    @property
    def running(self) -> list[Call]:
        return self.scheduler._roster.running

    @property
    def waiting(self) -> list[Call]:
        return self.scheduler._roster.waiting

    @property
    def idle(self) -> bool:
        self.kv.check_integrity()
        return self.kv.available_blocks == self.kv.pool.num_blocks
