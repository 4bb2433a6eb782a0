"""The plan of an embedded deployment: whose memory is compared."""

from __future__ import annotations

import pytest
import torch

from pipeline.planning.machine_plan import plan_machine
from pipeline.planning.plan import ask
from pipeline.spec import DEFAULT_SPEC, DeploymentSpec


def test_an_embedded_deployment_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV of 16 bits, compared with what the GPU has free; without a GPU the plan says that it is not."""
    on_cpu = DeploymentSpec.load(DEFAULT_SPEC)
    on_gpu = on_cpu.model_copy(update={"device": "cuda"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (7 << 30, 8 << 30))
    plan, other = plan_machine(on_gpu, ask(on_gpu)), plan_machine(on_cpu, ask(on_cpu))
    assert plan.available == 7 << 30 != other.available
    assert {role: 2 * size for role, size in plan.pools.items()} == other.pools and plan.weights == other.weights
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert any("torch finds no GPU here" in note for note in plan_machine(on_gpu, ask(on_gpu)).unknown)
