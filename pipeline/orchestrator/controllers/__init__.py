"""K controllers by the names of the deployment spec."""

from __future__ import annotations

from pipeline.engine.manifest import CostTable
from pipeline.orchestrator.controllers.base import ControllerFactory
from pipeline.orchestrator.controllers.costs import CostModel
from pipeline.orchestrator.controllers.fixed import FixedFactory
from pipeline.orchestrator.controllers.goodput import GoodputFactory
from pipeline.orchestrator.controllers.governor import GovernedFactory, plain_by_tables
from pipeline.orchestrator.controllers.heuristic import HeuristicFactory
from pipeline.orchestrator.controllers.pid import PidFactory
from pipeline.spec import ControllerSpec


def make_controllers(
    spec: ControllerSpec, max_draft_len: int, target: CostTable, draft: CostTable | None
) -> ControllerFactory:
    """The controller that a spec names."""
    if spec.kind == "fixed":
        return FixedFactory(spec.k, spec.burst)
    if spec.kind == "heuristic":
        return HeuristicFactory(spec.k, max_draft_len)
    if spec.kind == "pid":
        return PidFactory(spec.k, max_draft_len, spec.set_point, spec.burst)
    begins_plain = plain_by_tables(target, draft, max_draft_len)
    goodput = GoodputFactory(CostModel(target, draft), spec.burst)
    return GovernedFactory(goodput, max_draft_len, spec.burst, begins_plain)
