"""Small random models: as Hugging Face folders, as decoders, and as step models whose passes can be watched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from away import AWAY, away
from torch import Tensor

from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.compiled.decoder import CompiledDecoder
from pipeline.engine.decoder import Best, Decoder
from pipeline.engine.embedded import EmbeddedStepModel
from pipeline.engine.manifest import Limits
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.paged.decoder import PagedDecoder
from pipeline.engine.step import StepRequest, StepResult
from pipeline.engine.weights import CheckpointReader, fused_tensors, load_weights, save_weights
from pipeline.kv_cache.page_table import PageTable
from pipeline.sampling.rules import PREFERENCE
from pipeline.sampling.vocabulary import row_argmax

VOCAB = 97
BLOCK = 4
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LIMITS = Limits(max_seq_len=96, max_draft_len=6, max_requests=8, kv_blocks=48, tokens_per_block=BLOCK)
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}

# What is special about each: the class of its configuration, and what differs from SHAPE.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-grouped-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-linear-rope": ("Llama", {"rope_parameters": LINEAR}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 12}),
    "qwen3-biases": ("Qwen3", {"head_dim": 8, "attention_bias": True}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 8}),
}


@dataclass(frozen=True, eq=False)
class TinyModel:
    """A random model: the reference, and the folder that it was saved to."""

    reference: Any  # transformers model, float32
    folder: Path

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """[tokens, vocab] of the reference."""
        out: Tensor = self.reference(torch.tensor([list(tokens)])).logits[0]
        return out

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[int, ...]:
        """The reference's own greedy text."""
        if not count:
            return ()
        out = self.reference.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return tuple(out[0, len(prompt) :].tolist())


def make_tiny(kind: str, folder: Path, seed: int = 0, error: float = 0.0) -> TinyModel:
    """Save a random model with every parameter, biases and norms included, away from its initial value.

    Args:
        error: how far its parameters are from those that the seed stands for: a draft of that other model.
    """
    import transformers

    family, changes = KINDS[kind]
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    generator, errors = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.3
            noise += torch.randn(parameter.shape, generator=errors) * error
            parameter.copy_(1 + noise if "norm" in name else noise)
    model.save_pretrained(folder, safe_serialization=True)
    return TinyModel(model, folder)


def make_decoder(
    folder: Path,
    dtype: str = "float32",
    blocks: int = 32,
    max_seq_len: int = 96,
    head_ids: list[int] | None = None,
    kind: str = "compiled",
) -> Decoder:
    """Load a Hugging Face folder the way engines are built and loaded.

    Args:
        kind: "compiled" for the CPU engine's own; the others are the one of CUDA: "paged" and "paged-eager" on a CPU as
            with graphs and without them, "paged-away" as on a device of its own, "paged-cuda" on a GPU.
    """
    config = ModelConfig.read(folder)
    engine = folder / f"engine-{dtype}-{head_ids}"
    if not engine.is_dir():
        engine.mkdir()
        save_weights(engine, fused_tensors(config, CheckpointReader(folder), None, head_ids), dtype)
    if kind == "compiled":
        return CompiledDecoder(config, load_weights(engine), dtype, max_seq_len, blocks, BLOCK)
    limits = LIMITS.model_copy(update={"max_seq_len": max_seq_len, "kv_blocks": blocks})
    if kind == "paged-away":
        with away():
            return AwayDecoder(config, load_weights(engine), dtype, limits, AWAY)
    device = torch.device("cuda" if kind == "paged-cuda" else "cpu")
    return PagedDecoder(config, load_weights(engine), dtype, limits, device, graphs=kind != "paged-eager")


class AwayDecoder(PagedDecoder):
    """On a device that refuses what a GPU refuses."""

    def thread_context(self) -> AbstractContextManager[None]:
        return away()


def spoil_pool(decoder: Decoder) -> None:
    """Fill a KV pool with NaN: what a pass does not write it must not use."""
    if isinstance(decoder, PagedDecoder):
        for pool in (decoder.keys, decoder.values):
            with torch.inference_mode(), decoder.thread_context():
                pool.fill_(torch.nan)
    else:
        assert isinstance(decoder, CompiledDecoder)
        decoder._pool.keys.fill(np.nan)
        decoder._pool.values.fill(np.nan)


def compute(
    decoder: Decoder, table: PageTable, tokens: Sequence[int], start: int = 0, logits: int | None = None
) -> Tensor:
    """One pass of one row: tokens[start:], with logits at the last `logits` of them (all by default)."""
    new = tuple(tokens[start:])
    batch = PackedBatch((Row(new, start, table, len(new) if logits is None else logits),))
    with decoder.thread_context():
        return decoder.forward(batch).cpu()


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    """Equal to float32 rounding, relative to the largest number."""
    scale = float(expected.abs().max())
    difference = float((found - expected).abs().max())
    assert found.shape == expected.shape and difference <= tolerance * scale, f"{difference} at scale {scale}"


@dataclass(eq=False)
class Watched:
    """A step model whose passes are recorded, and can be held, spoilt or failed."""

    model: EmbeddedStepModel
    decoder: Decoder
    passes: list[PackedBatch] = field(default_factory=list)
    free: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    spoil: Callable[[PackedBatch, Tensor], None] = lambda batch, logits: None
    names: int = 0

    def request(self, tokens: Sequence[int], new: int, **options: Any) -> StepRequest:
        self.names += 1
        return StepRequest(options.pop("request_id", f"call-{self.names}"), tuple(tokens), new, **options)

    def call(self, tokens: Sequence[int], new: int, **options: Any) -> StepResult:
        """One call, waited for."""
        return self.model.submit(self.request(tokens, new, **options)).result(20)

    def verify(self, tokens: Sequence[int], drafts: Sequence[int], **options: Any) -> StepResult:
        return self.call(tokens, len(drafts) + 1, draft_ids=tuple(drafts), **options)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stops the engine inside a pass: what is submitted meanwhile waits together."""
        self.free.clear()
        self.entered.clear()
        first = self.model.submit(self.request([1], 1))
        assert self.entered.wait(20)
        try:
            yield
        finally:
            self.passes.clear()
            self.free.set()
        first.exception(20)

    def check_idle(self) -> None:
        """Nothing is running: every block is free or can be evicted."""
        self.model.kv.check_integrity()
        assert self.model.kv.available_blocks == self.model.kv.pool.num_blocks


def best_of(logits: Tensor) -> Best:
    """What `Decoder.best` says of logits [n, width]."""
    return Best(row_argmax(logits).tolist(), torch.isfinite(logits.amax(-1)).tolist())


def watch(decoder: Decoder, limits: Limits = LIMITS, takeover_loss: int = 0) -> Watched:
    with decoder.thread_context():
        model = EmbeddedStepModel(decoder, limits, PREFERENCE, takeover_loss)
    watched = Watched(model, decoder)
    watched.free.set()
    forward = decoder.forward

    def recorded(batch: PackedBatch) -> Tensor:
        watched.passes.append(batch)
        watched.entered.set()
        watched.free.wait(20)
        logits = forward(batch)
        watched.spoil(batch, logits)
        # Spoiled logits are what the pass has found.
        decoder.best = lambda: best_of(logits)  # type: ignore[method-assign]
        return logits

    decoder.forward = recorded  # type: ignore[method-assign]
    return watched
