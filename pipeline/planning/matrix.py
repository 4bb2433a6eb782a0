"""The deployment matrix: draft x GPU x batch for one target, computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipeline.planning.constants import ACCEPTANCE, DEFAULT, Constants
from pipeline.planning.gpus import Gpu
from pipeline.planning.layout import Layout
from pipeline.planning.memory import Sizes, balanced_tokens, sequences_in
from pipeline.planning.model_shape import ModelShape
from pipeline.planning.placement import Placement
from pipeline.planning.roofline import pass_time
from pipeline.planning.speculation import gpu_costs, speculate
from pipeline.spec import Role

# Drafts that speak a family's tokens, from small to medium, by the beginning of the target's hub id.
FAMILIES = {
    "meta-llama/Llama-3": (
        "meta-llama/Llama-3.2-1B-Instruct",
        "meta-llama/Llama-3.2-3B-Instruct",
        "meta-llama/Llama-3.1-8B-Instruct",
    ),
    "Qwen/Qwen2.5": ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
    "Qwen/Qwen3": ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B"),
}
BATCHES = (1, 8, 32)
GPU_NAMES = ("A100-80GB", "H100-SXM", "H200", "B200")
LARGEST_GROUP = 8  # GPUs of one server
VRAM_SHARE = 0.5  # a draft that takes more of the sequences is bounded by memory


@dataclass(frozen=True)
class Cell:
    """One draft on one kind of GPU at one batch size.

    Attributes:
        gpus: the fewest that hold both models and `batch` sequences (a power of two, tensor parallel).
        ratio: time of a plain target step over the time of a draft step.
        best_k: K with the most tokens per second; 0 where speculation does not pay.
        sequences: that the KV pools hold with this draft; `sequences_alone` without one.
        bottleneck: "VRAM" where the draft takes more than half of the sequences, else what takes the most time
            of a draft step.
    """

    draft: str
    gpu: str
    gpus: int
    batch: int
    ratio: float
    best_k: int
    speedup: float
    break_even: float | None
    sequences: int
    sequences_alone: int
    bottleneck: str


def deployment_matrix(
    layout: Layout,
    drafts: Iterable[tuple[str, Placement]],
    gpus: Iterable[Gpu],
    batches: Iterable[int],
    context: int,
    acceptance: float = ACCEPTANCE,
    constants: Constants = DEFAULT,
) -> tuple[Cell, ...]:
    """Every combination; what does not fit eight GPUs is left out."""
    return tuple(
        cell
        for name, draft in drafts
        for gpu in gpus
        for cell in _cells(name, layout, draft, gpu, tuple(batches), context, acceptance, constants)
    )


def family_drafts(target: str, like: Placement) -> tuple[tuple[str, Placement], ...]:
    """Smaller models of a target's family, each on the first GPU, with weights and KV cache as the target has them."""
    names = next((drafts for prefix, drafts in FAMILIES.items() if target.startswith(prefix)), ())
    placed = ((name, Placement(ModelShape.known(name), like.weights, kv_bytes=like.kv_bytes)) for name in names)
    return tuple((name, draft) for name, draft in placed if 2 * draft.shape.parameters < like.shape.parameters)


def _cells(
    name: str,
    layout: Layout,
    draft: Placement,
    gpu: Gpu,
    batches: tuple[int, ...],
    context: int,
    acceptance: float,
    constants: Constants,
) -> Iterable[Cell]:
    sizes = layout.sizes
    for batch in batches:
        for target in _splits(layout.placements["target"]):
            sequences = _sequences({"target": target, "draft": draft}, gpu, sizes, context, constants)
            if sequences >= batch:
                break
        else:
            continue
        without = _sequences({"target": target}, gpu, sizes, context, constants)
        costs = gpu_costs(target, draft, gpu, batch, context, sizes.max_draft_len, constants)
        found = speculate(costs, batch, acceptance)
        step = pass_time(draft, gpu, batch, 1, context, constants)
        vram = sequences < (1 - VRAM_SHARE) * without
        yield Cell(
            draft=name,
            gpu=gpu.name,
            gpus=target.tensor_parallel,
            batch=batch,
            ratio=found.ratio,
            best_k=found.best.k,
            speedup=found.best.speedup,
            break_even=found.break_even,
            sequences=sequences,
            sequences_alone=without,
            bottleneck="VRAM" if vram else step.bottleneck,
        )


def _splits(target: Placement) -> Iterable[Placement]:
    """The target over 1, 2, 4 ... GPUs by tensor parallelism, where that can be built."""
    size = 1
    while size <= LARGEST_GROUP:
        split = replace(target, tensor_parallel=size, pipeline_parallel=1, devices=tuple(range(size)))
        if not split.indivisible():
            yield split
        size *= 2


def _sequences(placements: dict[Role, Placement], gpu: Gpu, sizes: Sizes, context: int, constants: Constants) -> int:
    tokens = balanced_tokens(placements, gpu.memory, sizes, constants)
    return sequences_in(tokens, context, sizes.max_draft_len, sizes.tokens_per_block)
