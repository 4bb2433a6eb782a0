"""A deployment spec as the planner takes it: placements and sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.errors import SpecError
from pipeline.planning.memory import Sizes
from pipeline.planning.model_source import ModelSource
from pipeline.planning.placement import Placement
from pipeline.spec import DeploymentSpec, Role
from pipeline.tensorrt_spec import cuda_graphs, kv_fraction


@dataclass(frozen=True)
class Layout:
    """What a spec asks of its GPUs."""

    placements: dict[Role, Placement]
    sizes: Sizes

    @property
    def gpus(self) -> int:
        """How many GPUs are needed."""
        return len({device for placement in self.placements.values() for device in placement.devices})

    @property
    def draft(self) -> Placement | None:
        return self.placements.get("draft")


def read_layout(spec: DeploymentSpec, gpus: int | None = None) -> Layout:
    """Read the shapes of a spec's models and lay them out.

    Args:
        gpus: lay the target out over the first so many GPUs by tensor parallelism, and the draft over as many of
            them as the spec gives it; None: as the spec says.

    Raises:
        EngineError: a model's shape is not to be had, or is not supported.
        SpecError: a split without whole heads or layers.
    """
    placements: dict[Role, Placement] = {}
    for role in spec.model_roles:
        part = spec.step_model(role)
        placement = Placement(
            shape=ModelSource.find(part.model or "").shape(),
            weights=part.weights,
            tensor_parallel=part.tensor_parallel,
            pipeline_parallel=part.pipeline_parallel,
            devices=part.device_ids,
            kv_bytes=1 if spec.tensorrt_llm.kv_cache_dtype == "fp8" else 2,
        )
        if gpus is not None:
            over = gpus if role == "target" else min(gpus, part.tensor_parallel)
            placement = replace(placement, tensor_parallel=over, pipeline_parallel=1, devices=tuple(range(over)))
        for reason in placement.indivisible():
            raise SpecError(f"{role}.{reason}")
        placements[role] = placement
    return Layout(placements, _sizes(spec))


def _sizes(spec: DeploymentSpec) -> Sizes:
    k = spec.limits.max_draft_len
    laws: dict[Role, int] = {"target": 2 * k + 1 if spec.draft.kind != "none" else 1}
    laws["draft"] = k + 1 if spec.draft.sampling == "q" else 1
    graphs = {role: cuda_graphs(spec, role) for role in spec.model_roles}
    return Sizes(
        max_requests=spec.limits.max_requests,
        max_draft_len=k,
        max_num_tokens=spec.tensorrt_llm.max_num_tokens,
        tokens_per_block=spec.tokens_per_block,
        fractions={role: kv_fraction(spec, role) for role in spec.model_roles},
        pool_tokens={r: tokens for r in spec.model_roles if (tokens := spec.step_model(r).kv_tokens) is not None},
        graphs={role: (graph.cache_size or 0) if graph.enabled else 0 for role, graph in graphs.items()},
        laws=laws,
    )
