"""The step-model interface: one call computes one verify, one burst of plain decoding, or one draft.

The fields are those of NVIDIA's `tensorrt_llm` Triton model and mean the same, so that the loop above cannot
tell an embedded engine from a TensorRT-LLM one: `output_ids` never holds the end token, `total_draft_tokens`
may be smaller than what was sent, and `draft_logits` are taken as a plain softmax.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipeline.sampling.params import GREEDY, SamplingParams
from pipeline.sampling.rules import RULE_AUTO

FloatArray = npt.NDArray[np.float32]

DEFAULT_PRIORITY = 2  # what 0 stands for: one level may be put before those who do not say, any number behind


@dataclass(frozen=True)
class StepRequest:
    """One call of a step model.

    Attributes:
        request_id: unique per call; `stop` takes it.
        input_ids: the committed prefix, prompt included, at least one token.
        max_new_tokens: `request_output_len`; with drafts it is K + 1.
        draft_ids: K proposed tokens to verify; empty for plain decoding or drafting.
        draft_logits: [K, vocab] log q, up to a constant per row; None means a one-hot q at each draft token.
        sampling: the options of the law.
        seed: of this call alone: hash(request seed, round, role); under "coupled" the request's own seed.
        end_id: the token that ends the sequence, or None (draft calls never send one).
        min_tokens: new tokens of this call before the end token may come; of no account without end_id.
        rule: acceptance rule, or "auto": the best the engine offers. "coupled" shapes plain decoding and
            drafting too; the others act on drafts alone.
        return_logits: ask for [new, vocab] log laws of the returned tokens (`return_generation_logits`).
        return_log_probs: ask for the log probability of each returned token.
        arrival: order of the request at the orchestrator; smaller is admitted first.
        priority: 1 goes first, larger ones later, 0 as DEFAULT_PRIORITY; within one, arrival decides.
        continues: another plain call will go on from the last token of this one, unless the text ends: the engine
            may compute ahead.
    """

    request_id: str
    input_ids: tuple[int, ...]
    max_new_tokens: int
    draft_ids: tuple[int, ...] = ()
    draft_logits: FloatArray | None = None
    sampling: SamplingParams = GREEDY
    seed: int = 0
    end_id: int | None = None
    min_tokens: int = 0
    rule: str = RULE_AUTO
    return_logits: bool = False
    return_log_probs: bool = False
    arrival: int = 0
    priority: int = 0
    continues: bool = False


@dataclass(frozen=True)
class KvUse:
    """What one call took from the KV pool, in blocks (`kv_cache_*` outputs) and in computed tokens.

    A call that was `preempted`, so many times, counts blocks since it started again, and all tokens that it computed.
    """

    alloc_new_blocks: int = 0
    reused_blocks: int = 0
    alloc_total_blocks: int = 0
    reused_tokens: int = 0
    computed_tokens: int = 0
    preempted: int = 0


@dataclass(frozen=True)
class KvBlocks:
    """Where the blocks of a KV pool are: free, held by the prefix index alone (evictable), used by running calls."""

    free: int
    cached: int
    used: int


@dataclass(frozen=True)
class StepResult:
    """The answer to one call.

    Attributes:
        output_ids: new tokens only, without the end token.
        total_draft_tokens: drafts verified: the first of those sent, perhaps fewer.
        total_accepted_draft_tokens: of those, how many were kept.
        generation_logits: [new, vocab] log laws, if asked for.
        log_probs: of each of output_ids under log_softmax of the raw logits, before any sampling option acts;
            empty if not asked for. The end token is not in output_ids and has none.
        kv: block counters of this call.
        compute_s: seconds of forward passes this call took part in, measured at the engine.
    """

    output_ids: tuple[int, ...]
    total_draft_tokens: int = 0
    total_accepted_draft_tokens: int = 0
    generation_logits: FloatArray | None = None
    log_probs: tuple[float, ...] = ()
    kv: KvUse = field(default_factory=KvUse)
    compute_s: float = 0.0


class StepModel(ABC):
    """A target or draft engine, in this process or behind Triton."""

    @abstractmethod
    def submit(self, request: StepRequest) -> Future[StepResult]:
        """Start a call.

        Returns:
            A future that ends with a StepResult, or with a StepError that names what was refused.
        """

    @abstractmethod
    def stop(self, request_id: str) -> None:
        """Ask a running call to end soon; a call that has ended is ignored."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and memory. Calls still running end with a StepError."""

    def kv_blocks(self) -> KvBlocks | None:
        """The state of its KV pool now, from any thread; None where it is not known in this process."""
        return None
