"""The commands that say before anything is started what will come of it: `specdec plan | doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.client.command import console, exit_with
from pipeline.planning.constants import ACCEPTANCE, DEFAULT
from pipeline.spec import DEFAULT_SPEC, DeploymentSpec

app = typer.Typer()

MATRIX_SPEC = DEFAULT_SPEC.with_name("llama-3.1-70b-1b.yaml")  # the default spec has no GPU to choose

SpecArgument = Annotated[Path | None, typer.Argument(help="deployment spec, a YAML file; absent: the demo")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of tables")]


@app.command()
def plan(
    spec: SpecArgument = None,
    as_json: JsonOption = False,
    gpu: Annotated[str | None, typer.Option(help="e.g. H100-SXM; absent: every GPU that is known")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=64, help="lay the target out over so many GPUs")] = None,
    acceptance: Annotated[float, typer.Option(help="of a draft, given that its round reached it")] = ACCEPTANCE,
    context: Annotated[int | None, typer.Option(help="tokens of a sequence; absent: 2048, or max_seq_len")] = None,
    batch: Annotated[int | None, typer.Option(help="sequences decoded at once; absent: several")] = None,
    round_ms: Annotated[float, typer.Option(help="time of a round outside the models")] = DEFAULT.round_s * 1e3,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="draft x GPU x batch for the target of the spec; absent: Llama-3.1-70B")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="published figures against the model; no spec")] = False,
    out: Annotated[Path | None, typer.Option(help="a picture (.svg) of memory and speed")] = None,
) -> None:
    """Say whether a spec will fit and pay, on any machine, before anything is downloaded or compiled."""

    def work() -> int:
        from pipeline.client.plan import PlanOptions, run_check, run_plan

        if check:
            return run_check(as_json, console)
        loaded = DeploymentSpec.load(spec or (MATRIX_SPEC if matrix else DEFAULT_SPEC))
        options = PlanOptions(gpu, gpus, acceptance, context, batch, round_ms, matrix, as_json, out)
        return run_plan(loaded, options, console)

    exit_with(work)


@app.command()
def doctor(
    spec: SpecArgument = None,
    as_json: JsonOption = False,
    gpu: Annotated[str | None, typer.Option(help="judge memory for this kind of GPU instead of those here")] = None,
) -> None:
    """Look for what would go wrong: models, tokenizers, lengths, engines, memory, GPUs, ports. Starts nothing."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec or DEFAULT_SPEC)
        from pipeline.client.doctor import run_doctor

        return run_doctor(loaded, gpu, as_json, console)

    exit_with(work)
