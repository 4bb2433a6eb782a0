"""`specdec plan`: will it fit, and will it pay; computed from config.json files, on any machine."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from pipeline.client import plan_tables
from pipeline.errors import InvalidRequestError, SpecError
from pipeline.planning.constants import ACCEPTANCE, DEFAULT, Constants
from pipeline.planning.gpus import GPUS, find_gpu
from pipeline.planning.layout import Layout, read_layout
from pipeline.planning.machine_plan import plan_machine
from pipeline.planning.matrix import BATCHES, GPU_NAMES, Cell, deployment_matrix, family_drafts
from pipeline.planning.picture import save
from pipeline.planning.plan import GpuPlan, Question, ask, plan_on
from pipeline.planning.published import check
from pipeline.planning.report import gpu_plan_json, machine_plan_json
from pipeline.spec import DeploymentSpec

SHARES = (0.88, 0.94)  # of bandwidth: how far published figures move with the least certain constant


@dataclass(frozen=True)
class PlanOptions:
    """What the command was asked; None: the default of `ask`, or every GPU."""

    gpu: str | None = None
    gpus: int | None = None
    acceptance: float = ACCEPTANCE
    context: int | None = None
    batch: int | None = None
    round_ms: float = DEFAULT.round_s * 1e3
    matrix: bool = False
    as_json: bool = False
    picture: Path | None = None

    def constants(self) -> Constants:
        if not 0 <= self.round_ms <= 1e4:
            raise InvalidRequestError("round-ms", self.round_ms, "must be between 0 and 10000")
        return replace(DEFAULT, round_s=self.round_ms / 1e3)


def run_plan(spec: DeploymentSpec, options: PlanOptions, console: Console) -> int:
    """Plan, print. Returns the exit status: 0 where it fits at least one GPU asked about, else 1.

    Raises:
        SpecDecodeError: an option, a model or a split that makes no sense.
    """
    question = ask(spec, options.context, options.batch, options.acceptance)
    constants = options.constants()
    if spec.engine == "embedded":
        return _run_machine(spec, question, options, constants, console)
    layout = read_layout(spec, options.gpus)
    if options.matrix:
        return _run_matrix(spec, layout, question, options, constants, console)
    gpus = GPUS if options.gpu is None else (find_gpu(options.gpu),)
    plans = [plan_on(layout, gpu, question, constants) for gpu in gpus]
    shown = next((plan for plan in plans if plan.fits), plans[0])
    if options.picture is not None:
        _save(options.picture, spec.name, shown)
    if options.as_json:
        _print_json(console, {**_head(spec, constants), "plans": [gpu_plan_json(plan) for plan in plans]})
    else:
        if len(plans) > 1:
            plan_tables.print_gpus(console, plans)
        plan_tables.print_gpu_plan(console, shown)
        _assumed(console, constants, question)
        if options.picture is not None:
            console.print(f"picture: {options.picture}", highlight=False, soft_wrap=True)
    return 0 if any(plan.fits for plan in plans) else 1


def run_check(as_json: bool, console: Console) -> int:
    """Published figures against the model's."""
    rows = check()
    if as_json:
        _print_json(console, {"rows": [{**vars(row), "error": row.error} for row in rows]})
    else:
        low, high = (check(replace(DEFAULT, bandwidth_share=share)) for share in SHARES)
        plan_tables.print_check(console, rows, low, high)
    return 0


def _run_machine(
    spec: DeploymentSpec, question: Question, options: PlanOptions, constants: Constants, console: Console
) -> int:
    given = {
        "gpu": options.gpu, "gpus": options.gpus, "batch": options.batch, "out": options.picture,
        "matrix": options.matrix or None,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None:
            raise SpecError(f"--{name} is for engine: tensorrt_llm; {spec.name} is engine: embedded, on this machine")
    plan = plan_machine(spec, question, constants)
    if options.as_json:
        _print_json(console, {**_head(spec, constants), "machine": machine_plan_json(plan)})
    else:
        plan_tables.print_machine_plan(console, plan)
    return 0 if plan.fits else 1


def _run_matrix(
    spec: DeploymentSpec,
    layout: Layout,
    question: Question,
    options: PlanOptions,
    constants: Constants,
    console: Console,
) -> int:
    names = GPU_NAMES if options.gpu is None else (find_gpu(options.gpu).name,)
    batches = BATCHES if options.batch is None else (options.batch,)
    drafts = dict(family_drafts(spec.target.model, layout.placements["target"]))
    if spec.draft.model and layout.draft:
        drafts = {spec.draft.model: layout.draft} | drafts
    gpus = [find_gpu(name) for name in names]
    cells: tuple[Cell, ...] = deployment_matrix(
        layout, drafts.items(), gpus, batches, question.context, question.acceptance, constants
    )
    if options.as_json:
        _print_json(console, {**_head(spec, constants), "matrix": [vars(cell) for cell in cells]})
    else:
        plan_tables.print_matrix(console, spec.target.model, question.context, question.acceptance, cells)
        _assumed(console, constants, question)
    return 0


def _save(path: Path, name: str, plan: GpuPlan) -> None:
    if path.suffix.lower() != ".svg":
        raise InvalidRequestError("out", str(path), "must end in .svg")
    try:
        save(path, name, plan)
    except OSError as error:
        raise InvalidRequestError("out", str(path), f"cannot be written: {error.strerror}") from error


def _head(spec: DeploymentSpec, constants: Constants) -> dict[str, Any]:
    return {"name": spec.name, "engine": spec.engine, "constants": vars(constants)}


def _assumed(console: Console, constants: Constants, question: Question) -> None:
    console.print(plan_tables.constants_line(constants, question.acceptance), highlight=False, soft_wrap=True)


def _print_json(console: Console, data: dict[str, Any]) -> None:
    console.print_json(json.dumps(data), highlight=False)
