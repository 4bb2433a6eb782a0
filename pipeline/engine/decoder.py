"""What an engine asks of a decoder: one forward pass over a packed ragged batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import psutil
from torch import Tensor

from pipeline.engine.batch import PackedBatch
from pipeline.engine.model_config import ModelConfig
from pipeline.errors import EngineError


@dataclass(frozen=True)
class Best:
    """Per row of logits.

    Attributes:
        places: which output of the head is the largest, the first one on ties.
        finite: False where a law cannot be made: a NaN or a +inf is there, or nothing but -inf.
    """

    places: list[int]
    finite: list[bool]


class Decoder(ABC):
    """Weights and KV pool of one model of the Llama family.

    Attributes:
        config: shape of the model.
        head_ids: token ids of the LM head's outputs, where it has not all of them; on the logits' device.
        threads: that a pass uses.
    """

    config: ModelConfig
    head_ids: Tensor | None
    threads: int

    @abstractmethod
    def forward(self, batch: PackedBatch) -> Tensor:
        """Compute a batch: writes its KV, returns the logits its rows ask for.

        Returns:
            [batch.num_logits, head width] float32, rows in batch order, on the decoder's device; good until the next
            pass.
        """

    @abstractmethod
    def best(self) -> Best:
        """The largest logit of each row of the last pass, which the pass has found on its way."""

    @abstractmethod
    def copy_block(self, source: int, destination: int, tokens: int) -> None:
        """Copy the KV of a block's first `tokens` tokens to another block, in all layers."""

    def thread_context(self) -> AbstractContextManager[None]:
        """What a thread is inside of that runs passes, copies blocks and works on logits."""
        return nullcontext()

    def close(self) -> None:  # noqa: B027
        """Release threads."""


def require_pool_memory(needed: int, tokens: int) -> None:
    """Refuse a KV pool that this machine has no memory for.

    Args:
        needed: bytes.
        tokens: that the pool holds.

    Raises:
        EngineError: with both numbers.
    """
    available = psutil.virtual_memory().available
    if needed > available:
        raise EngineError(
            f"a KV pool of {tokens} tokens needs {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB of memory are "
            "available; lower kv_blocks"
        )
