"""The plan of an embedded deployment: this machine's memory, and what was measured when its engines were built."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from pipeline.engine.fit import read_engine_manifest
from pipeline.errors import EngineError
from pipeline.planning.constants import DEFAULT, Constants
from pipeline.planning.memory import sequences_in
from pipeline.planning.model_source import ModelSource
from pipeline.planning.placement import Placement
from pipeline.planning.plan import Question
from pipeline.planning.speculation import Speculation, StepCosts, speculate
from pipeline.spec import DeploymentSpec, Role

KV_BYTES = 4  # a CPU engine keeps keys and values in float32
GPU_KV_BYTES = 2  # of a float16 engine


@dataclass(frozen=True)
class MachinePlan:
    """What can be known without running anything.

    Attributes:
        weights, pools: bytes by role, from config.json.
        speed: of one sequence, from the measured cost tables; None where engines have not been built.
        unknown: what this plan cannot say, and what would.
    """

    weights: dict[Role, float]
    pools: dict[Role, float]
    available: float  # bytes of memory that processes can still have, the GPU's under device: cuda
    context: int
    sequences: int
    speed: Speculation | None
    unknown: tuple[str, ...]

    @property
    def needed(self) -> float:
        return sum(self.weights.values()) + sum(self.pools.values())

    @property
    def fits(self) -> bool:
        return self.needed <= self.available and self.sequences > 0


def plan_machine(spec: DeploymentSpec, question: Question, constants: Constants = DEFAULT) -> MachinePlan:
    """Plan an embedded deployment.

    Raises:
        EngineError: a model's shape is not to be had, or is not supported.
    """
    weight_bytes = 4 if spec.dtype == "float32" else 2
    kv_bytes = GPU_KV_BYTES if spec.device == "cuda" and spec.dtype == "float16" else KV_BYTES
    available, notes = _memory(spec)
    weights: dict[Role, float] = {}
    pools: dict[Role, float] = {}
    counts = []
    for role in spec.model_roles:
        part = spec.step_model(role)
        placement = Placement(ModelSource.find(part.model or "").shape(), kv_bytes=kv_bytes)
        tokens = part.kv_blocks * spec.tokens_per_block
        weights[role] = placement.shape.parameters * weight_bytes
        pools[role] = tokens * placement.rank_token_bytes
        counts.append(sequences_in(tokens, question.context, spec.limits.max_draft_len, spec.tokens_per_block))
    speed, unknown = _speed(spec, question, constants)
    return MachinePlan(weights, pools, available, question.context, min(counts), speed, (*notes, *unknown))


def _memory(spec: DeploymentSpec) -> tuple[float, tuple[str, ...]]:
    """Bytes that are free where the engines will run, and what that does not say."""
    if spec.device == "cuda":
        import torch  # takes seconds, which a plan for a CPU need not

        if torch.cuda.is_available():
            return float(torch.cuda.mem_get_info()[0]), ()
        missing = "memory: device: cuda, and torch finds no GPU here; what is available is this machine's own"
        return float(psutil.virtual_memory().available), (missing,)
    return float(psutil.virtual_memory().available), ()


def _speed(
    spec: DeploymentSpec, question: Question, constants: Constants
) -> tuple[Speculation | None, tuple[str, ...]]:
    unknown = [
        "batches above 1: a CPU pass of several rows depends on the machine; `specdec load` measures it",
        f"acceptance: {question.acceptance:g} is assumed; `specdec acceptance` measures it",
    ]
    try:
        manifests = {role: read_engine_manifest(spec, role) for role in spec.model_roles}
    except EngineError as error:
        return None, (f"time: the cost of a pass is measured when engines are built ({error})", *unknown)
    target, draft = manifests["target"].cost, manifests.get("draft")
    ks = range(spec.limits.max_draft_len + 1) if draft is not None else range(1)
    costs = StepCosts(
        draft_s=0.0 if draft is None else draft.cost.seconds(1),
        verify_s=tuple(target.seconds(k + 1) for k in ks),
        overhead_s=constants.round_s,
    )
    if spec.draft.kind in ("ngram", "hybrid"):
        unknown.append("n-gram drafts: they cost nothing and depend on the text alone; they come on top")
    return speculate(costs, 1, question.acceptance), tuple(unknown)
