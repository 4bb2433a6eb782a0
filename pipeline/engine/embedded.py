"""The embedded engine as a step model: one thread owns the decoder and batches what waits."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import torch
from torch import Tensor

from pipeline.engine.call import Call
from pipeline.engine.compiled.decoder import CompiledDecoder
from pipeline.engine.decoder import Decoder
from pipeline.engine.device import torch_device
from pipeline.engine.manifest import Limits, Manifest
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.scheduler import Scheduler
from pipeline.engine.step import KvBlocks, StepModel, StepRequest, StepResult
from pipeline.engine.weights import load_weights
from pipeline.errors import EngineError, InvalidRequestError, StepError
from pipeline.kv_cache.cache import KvCache
from pipeline.sampling.call import check_call
from pipeline.sampling.rules import resolve_rule

CALLER_WAIT_S = 0.5  # how long an idle engine keeps what a call may go on from


class EmbeddedStepModel(StepModel):
    """Runs calls of one engine. `submit` only enqueues; requests that wait together share a forward pass.

    Args:
        decoder: weights and KV pool.
        limits: sizes of the engine.
        rules: acceptance rules it offers, best first.
        takeover_loss: see `KvCache`.

    Raises:
        EngineError: the KV pool could not hold the longest request even alone.
    """

    def __init__(self, decoder: Decoder, limits: Limits, rules: tuple[str, ...], takeover_loss: int = 0) -> None:
        if limits.kv_tokens < limits.max_seq_len:
            raise EngineError(
                f"a KV pool of {limits.kv_tokens} tokens cannot hold a request of max_seq_len = {limits.max_seq_len}"
            )
        self._limits = limits
        self._context = decoder.thread_context
        self._rules = rules
        self._vocab = decoder.config.vocab_size
        self.kv = KvCache(limits.kv_blocks, limits.tokens_per_block, decoder.copy_block, takeover_loss)
        self._scheduler = Scheduler(decoder, self.kv, limits.max_requests)
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()  # nothing may enter the inbox after its end
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, request: StepRequest) -> Future[StepResult]:
        future: Future[StepResult] = Future()
        # From here on it cannot be cancelled: a call ends by `stop`, and its pass is shared.
        future.set_running_or_notify_cancel()
        try:
            call = self._accept(request, future)
        except InvalidRequestError as error:
            future.set_exception(error)
            return future
        with self._lock:
            if self._closed:
                future.set_exception(StepError("the engine is closed"))
            else:
                self._inbox.put(lambda: self._scheduler.add(call))
        return future

    def stop(self, request_id: str) -> None:
        self._inbox.put(lambda: self._scheduler.stop(request_id))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._inbox.put(None)
        self._thread.join()
        self._scheduler.close()

    def kv_blocks(self) -> KvBlocks:
        free, used = self.kv.pool.free_blocks, self.kv.used_blocks
        return KvBlocks(free, max(0, self.kv.pool.num_blocks - free - used), used)

    def _accept(self, request: StepRequest, future: Future[StepResult]) -> Call:
        limits = self._limits
        length, new = len(request.input_ids), request.max_new_tokens
        if not length:
            raise InvalidRequestError("input_ids", "[]", "must hold at least one token")
        for token in (min(request.input_ids), max(request.input_ids)):
            if not 0 <= token < self._vocab:
                raise InvalidRequestError("input_ids", token, f"must be a token id in [0, {self._vocab})")
        if new < 1:
            raise InvalidRequestError("request_output_len", new, "must be at least 1")
        sent = len(request.draft_ids)
        if sent > limits.max_draft_len:
            raise InvalidRequestError(
                "draft_input_ids", f"{sent} tokens", f"this engine verifies at most {limits.max_draft_len}"
            )
        if sent and new != sent + 1:
            raise InvalidRequestError("request_output_len", new, f"must be {sent + 1} for {sent} draft tokens")
        if length + new > limits.max_seq_len:
            raise InvalidRequestError(
                "input_ids",
                f"{length} tokens + {new} new",
                f"this engine holds {limits.max_seq_len} tokens (max_seq_len)",
            )
        call = Call(request, resolve_rule(request.rule, self._rules), future, request.draft_ids)
        if request.min_tokens < 0:
            raise InvalidRequestError("min_tokens", request.min_tokens, "must be 0 or more")
        check_call(call.verify_call(), self._vocab)
        return call

    def _run(self) -> None:
        reason = "the engine was closed"
        # Both are per thread. The pass has threads of its own: a second team would wait for the same cores.
        torch.set_num_threads(1)
        try:
            with torch.inference_mode(), self._context():
                self._loop()
        except Exception as error:
            traceback.print_exc()
            reason = f"the engine stopped: {type(error).__name__}: {error}"
        with self._lock:
            self._closed = True
        self._drain(StepError(reason))

    def _loop(self) -> None:
        while True:
            busy = self._scheduler.busy
            wait = CALLER_WAIT_S if self._scheduler.expects_callers else None
            try:
                action = self._inbox.get(block=not busy, timeout=wait)
            except queue.Empty:
                if busy:
                    self._scheduler.step()
                else:
                    self._scheduler.forget_callers()
                continue
            if action is None:
                return
            action()

    def _drain(self, error: StepError) -> None:
        """After the end: nobody who was accepted may wait for ever."""
        while True:
            try:
                action = self._inbox.get_nowait()
            except queue.Empty:
                break
            if action is not None:
                action()
        self._scheduler.fail_all(error)


def make_decoder(
    config: ModelConfig,
    weights: dict[str, Tensor],
    dtype: str,
    limits: Limits,
    threads: int = 0,
    device: torch.device | None = None,
) -> Decoder:
    """The decoder of an engine.

    Args:
        weights: tensors as `weights.fused_tensors` names them.
        dtype: of the matrices, "float16" or "float32".
        threads: compute threads; 0 takes every core.
        device: None and a CPU take the compiled decoder.

    Raises:
        EngineError: the device has not enough memory.
    """
    if device is not None and device.type != "cpu":
        from pipeline.engine.paged.decoder import PagedDecoder  # not needed on a CPU

        decoder = PagedDecoder(config, weights, dtype, limits, device)
        decoder.prepare()
        return decoder
    return CompiledDecoder(
        config, weights, dtype, limits.max_seq_len, limits.kv_blocks, limits.tokens_per_block, threads
    )


def load_step_model(folder: Path, threads: int = 0) -> EmbeddedStepModel:
    """Load an engine that `make engines` wrote.

    Args:
        folder: holds manifest.json, config.json and the weights.
        threads: compute threads of a CPU; 0 takes every core.

    Raises:
        EngineError: a file is missing, damaged or of another version, or the device that the engine was built for is
            not here.
    """
    manifest = Manifest.read(folder)
    device = torch_device(manifest.device or "cpu")
    manifest.verify_files(folder)
    limits = manifest.limits
    decoder = make_decoder(ModelConfig.read(folder), load_weights(folder), manifest.dtype, limits, threads, device)
    # A draft's last indexed tokens are often rejected: losing them costs nobody anything.
    loss = 0 if manifest.role == "target" else limits.tokens_per_block
    return EmbeddedStepModel(decoder, limits, manifest.capabilities.rules, loss)
