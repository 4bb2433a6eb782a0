"""The plan of a deployment: fit and speed on a GPU, before anything is downloaded or compiled."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import InvalidRequestError
from pipeline.planning.constants import ACCEPTANCE, DEFAULT, Constants
from pipeline.planning.gpus import Gpu
from pipeline.planning.layout import Layout
from pipeline.planning.memory import Memory, balanced_tokens, plan_memory, sequences_in
from pipeline.planning.speculation import Speculation, gpu_costs, speculate
from pipeline.spec import DeploymentSpec

BATCHES = (1, 4, 16, 64, 256)
MEDIUM_CONTEXT = 2048  # tokens of a request, if nobody says otherwise


@dataclass(frozen=True)
class Question:
    """What is asked of a plan.

    Attributes:
        context: tokens of each sequence; memory and KV reads are counted for so many.
        batches: sequences decoded at once, one answer each.
        acceptance: conditional acceptance of a draft, in [0, 1].
    """

    context: int
    batches: tuple[int, ...]
    acceptance: float = ACCEPTANCE


@dataclass(frozen=True)
class GpuPlan:
    """A deployment on one kind of GPU.

    Attributes:
        sequences: the largest number of sequences of `context` tokens in both KV pools; 0 where nothing fits.
        balanced_tokens: of both pools where they hold the same number; `balanced_sequences` of those.
        speeds: by batch; time is counted whether or not the memory fits.
        obstacle: why this cannot work, None if it can.
    """

    gpu: Gpu
    gpus: int
    memory: Memory
    context: int
    sequences: int
    balanced_tokens: int
    balanced_sequences: int
    speeds: tuple[Speculation, ...]
    obstacle: str | None

    @property
    def fits(self) -> bool:
        return self.obstacle is None


def ask(
    spec: DeploymentSpec,
    context: int | None = None,
    batch: int | None = None,
    acceptance: float = ACCEPTANCE,
) -> Question:
    """Fill in what was not asked, and check what was.

    Raises:
        InvalidRequestError: naming the option, its value and the limit.
    """
    longest, most = spec.limits.max_seq_len, spec.limits.max_requests
    if context is not None and not 1 <= context <= longest:
        raise InvalidRequestError("context", context, f"must be between 1 and limits.max_seq_len = {longest}")
    if batch is not None and not 1 <= batch <= most:
        raise InvalidRequestError("batch", batch, f"must be between 1 and limits.max_requests = {most}")
    if not 0.0 <= acceptance <= 1.0:
        raise InvalidRequestError("acceptance", acceptance, "must be between 0 and 1")
    batches = (*(size for size in BATCHES if size < most), most) if batch is None else (batch,)
    return Question(min(MEDIUM_CONTEXT, longest) if context is None else context, batches, acceptance)


def plan_on(layout: Layout, gpu: Gpu, question: Question, constants: Constants = DEFAULT) -> GpuPlan:
    """Plan a layout on a kind of GPU."""
    memory = plan_memory(layout.placements, gpu.memory, layout.sizes, constants)
    target, draft, k = layout.placements["target"], layout.draft, layout.sizes.max_draft_len
    speeds = tuple(
        speculate(gpu_costs(target, draft, gpu, batch, question.context, k, constants), batch, question.acceptance)
        for batch in question.batches
    )
    tokens = balanced_tokens(layout.placements, gpu.memory, layout.sizes, constants)
    sequences = memory.sequences(question.context)
    return GpuPlan(
        gpu=gpu,
        gpus=layout.gpus,
        memory=memory,
        context=question.context,
        sequences=sequences,
        balanced_tokens=tokens,
        balanced_sequences=sequences_in(tokens, question.context, k, layout.sizes.tokens_per_block),
        speeds=speeds,
        obstacle=_obstacle(layout, gpu, memory, question.context),
    )


def _obstacle(layout: Layout, gpu: Gpu, memory: Memory, context: int) -> str | None:
    if gpu.flops_fp8 is None and any(part.weights == "fp8" for part in layout.placements.values()):
        return f"{gpu.name} (compute capability {gpu.architecture}) has no FP8 arithmetic"
    if not memory.fits:
        worst = max(memory.envelopes, key=lambda envelope: envelope.missing)
        needed = worst.capacity + worst.missing
        return f"GPU {worst.device} needs {needed / 1e9:.1f} GB before any KV, has {worst.capacity / 1e9:.0f}"
    if memory.sequences(context) == 0:
        shown = ", ".join(f"{role} {tokens:,}" for role, tokens in memory.pool_tokens.items())
        return f"no sequence of {context:,} tokens fits the KV pools ({shown} tokens)"
    return None
