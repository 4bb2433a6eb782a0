"""Plans as JSON: bytes, seconds, tokens per second."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pipeline.planning.machine_plan import MachinePlan
from pipeline.planning.plan import GpuPlan
from pipeline.planning.speculation import Speculation


def gpu_plan_json(plan: GpuPlan) -> dict[str, Any]:
    """One kind of GPU."""
    return {
        "gpu": plan.gpu.name,
        "gpus": plan.gpus,
        "fits": plan.fits,
        "obstacle": plan.obstacle,
        "context": plan.context,
        "sequences": plan.sequences,
        "balanced_kv_tokens": plan.balanced_tokens,
        "balanced_sequences": plan.balanced_sequences,
        "kv_pool_tokens": plan.memory.pool_tokens,
        "memory": [
            {
                "device": envelope.device,
                "capacity": envelope.capacity,
                "used": envelope.used,
                "missing": envelope.missing,
                **{role: asdict(model) for role, model in envelope.models.items()},
            }
            for envelope in plan.memory.envelopes
        ],
        "speeds": [speculation_json(speed) for speed in plan.speeds],
    }


def speculation_json(speed: Speculation) -> dict[str, Any]:
    """One batch size."""
    return {
        "batch": speed.sequences,
        "acceptance": speed.acceptance,
        "speed_ratio": speed.ratio,
        "break_even_acceptance": speed.break_even,
        "best_k": speed.best.k,
        "outcomes": [asdict(outcome) for outcome in speed.outcomes],
    }


def machine_plan_json(plan: MachinePlan) -> dict[str, Any]:
    """An embedded deployment."""
    return {
        "fits": plan.fits,
        "weights": plan.weights,
        "kv_pools": plan.pools,
        "needed": plan.needed,
        "available": plan.available,
        "context": plan.context,
        "sequences": plan.sequences,
        "speed": None if plan.speed is None else speculation_json(plan.speed),
        "unknown": plan.unknown,
    }
