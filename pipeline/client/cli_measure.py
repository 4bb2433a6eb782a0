"""The commands that prove, compare and train: `specdec replay | conformance | acceptance | ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.client.command import SpecOption, console, exit_with
from pipeline.client.options import MaxTokensOption
from pipeline.client.prompts import BUILT_IN as BUILT_IN_PROMPTS
from pipeline.spec import DEFAULT_SPEC, DeploymentSpec

app = typer.Typer()


@app.command()
def replay(
    trace: Annotated[Path, typer.Argument(help="written by `--trace`")],
    controller: Annotated[
        list[str] | None, typer.Option(help="goodput, heuristic, pid, fixed or plain; may be repeated; absent: all")
    ] = None,
    k: Annotated[list[int] | None, typer.Option("--k", help="K of `fixed`; may be repeated")] = None,
    seed: Annotated[int, typer.Option(help="of the outcomes that have to be estimated")] = 0,
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL: decode these in this process first, and record them in TRACE")
    ] = None,
    spec: SpecOption = DEFAULT_SPEC,
    max_tokens: MaxTokensOption = 64,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here as well")] = None,
) -> None:
    """Let other K controllers decide the rounds of a recorded trace: predicted tokens/s, K and acceptance."""

    def work() -> int:
        from pipeline.client.replay import check_kinds, run_replay

        check_kinds(controller or ())
        if prompts is not None:
            from pipeline.client.record import record_prompts

            record_prompts(DeploymentSpec.load(spec), console, prompts, trace, max_tokens)
        return run_replay(trace, console, controller or (), k or (), seed, json_file)

    exit_with(work)


@app.command()
def conformance(
    spec: SpecOption = DEFAULT_SPEC,
    url: Annotated[str | None, typer.Option(help="host:port of gRPC of a running deployment")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="start the server of the spec for this run")] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="folder of the target's tokenizer; absent: the spec's")] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSONL with the keys text and kind")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the findings here as well")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="fewer prompts, two option sets, no log-probs")] = False,
) -> None:
    """Prove that text follows the target's law: of a deployment at a URL, a server started here, or in process."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.conformance import run_conformance

        return run_conformance(loaded, console, url, serve, tokenizer, prompts, json_file, quick)

    exit_with(work)


@app.command()
def distill(
    target: Annotated[Path, typer.Argument(help="the target, a Hugging Face folder")],
    out: Annotated[Path, typer.Option(help="folder to write the draft into")] = Path("draft"),
    layers: Annotated[int, typer.Option(help="layers of the draft: the target's first ones and its last")] = 4,
    init: Annotated[Path | None, typer.Option(help="train this draft on instead")] = None,
    minutes: Annotated[float, typer.Option(help="for writing text and training together")] = 60.0,
    tokens: Annotated[int, typer.Option(help="text the target writes at most")] = 5_000_000,
    prompts: Annotated[Path | None, typer.Option(help="JSONL of your own: text, and if wanted kind, chat")] = None,
    exclude: Annotated[Path | None, typer.Option(help="JSONL measured on, never trained on; absent: bench's")] = None,
    corpus: Annotated[Path | None, typer.Option(help="text of an earlier run, instead of writing it")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    slots: Annotated[int, typer.Option(help="texts that a process writes at a time")] = 96,
    workers: Annotated[
        int | None, typer.Option(help="writing processes; absent: one per core, or one on a GPU")
    ] = None,
    head_tokens: Annotated[int, typer.Option(help="tokens in the draft's LM head while it is trained")] = 8192,
    batch_tokens: Annotated[int, typer.Option(help="tokens of a training step")] = 4096,
    steps: Annotated[int | None, typer.Option(help="training steps at most; absent: what the time allows")] = None,
    rate: Annotated[float, typer.Option(help="peak learning rate")] = 1e-3,
    seed: Annotated[int, typer.Option(help="of prompts, draws and order")] = 0,
) -> None:
    """Make a draft for a target: the target writes text, a few layers learn to foresee it, acceptance is measured."""

    def work() -> int:
        from pipeline.distillation.distill import distill as run
        from pipeline.distillation.options import DistillOptions

        options = DistillOptions(
            target,
            out,
            layers,
            init,
            minutes,
            tokens,
            prompts,
            exclude or BUILT_IN_PROMPTS,
            corpus,
            device,
            slots,
            workers,
            head_tokens,
            batch_tokens,
            steps,
            rate,
            seed,
        )
        return run(options, console)

    exit_with(work)


@app.command("choose-draft")
def choose_draft(
    spec: SpecOption = DEFAULT_SPEC,
    draft: Annotated[
        list[str] | None,
        typer.Option(help="hybrid:FOLDER, model:FOLDER or ngram; may be repeated; absent: what the spec has"),
    ] = None,
    controller: Annotated[
        list[str] | None, typer.Option(help="goodput, heuristic, pid or fixed=K; may be repeated; absent: goodput")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="JSONL with the keys text and kind")] = None,
    max_tokens: MaxTokensOption = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here as well")] = None,
) -> None:
    """Compare drafts and K controllers on your own prompts, in this process, and say which to take."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.choose_draft import run_choose_draft

        return run_choose_draft(
            loaded, console, draft or (), controller or (), prompts, max_tokens, temperature, json_file
        )

    exit_with(work)


@app.command()
def acceptance(
    spec: SpecOption = DEFAULT_SPEC,
    max_tokens: MaxTokensOption = 32,
    answers: Annotated[int, typer.Option(min=1, max=64, help="answers per prompt, each with a seed of its own")] = 2,
    prompts: Annotated[Path | None, typer.Option(help="JSONL with the keys text and kind")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here as well")] = None,
) -> None:
    """Count how often sampled drafts are kept, by acceptance rule and temperature, in this process."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.bench_acceptance import run_acceptance

        return run_acceptance(loaded, console, max_tokens, answers, prompts, json_file)

    exit_with(work)


@app.command()
def sampling(
    spec: SpecOption = DEFAULT_SPEC,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here as well")] = None,
) -> None:
    """Measure laws and rule, from logits to token ids, per option set, beside a forward pass."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.bench_sampling import run_sampling_costs

        return run_sampling_costs(loaded, console, json_file)

    exit_with(work)
