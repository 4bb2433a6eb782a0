"""The `specdec` command: options in, one call of the file that does the work, exit status out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pipeline.client.options import GenerationOptions, MaxTokensOption, takes_options
from pipeline.client.prompts import BUILT_IN as BUILT_IN_PROMPTS
from pipeline.errors import SpecDecodeError
from pipeline.spec import DEFAULT_SPEC, ROOT, DeploymentSpec, PortsSpec

app = typer.Typer(
    help="Speculative decoding: build engines, serve them in Triton, ask for text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

SpecOption = Annotated[Path, typer.Option("--spec", help="deployment spec, a YAML file")]
PortOption = Annotated[int | None, typer.Option(min=0, max=65535, help="0 takes a free one; absent: the spec's")]
StatsOption = Annotated[bool, typer.Option("--stats/--no-stats", help="a line of statistics after the answer")]


@app.command()
def engines(spec: SpecOption = DEFAULT_SPEC) -> None:
    """Build both engines of a spec; what has not changed is left alone."""
    script = ROOT / "build" / "engines.py"
    raise typer.Exit(subprocess.run([sys.executable, str(script), str(spec)]).returncode)


@app.command()
def repo(spec: SpecOption = DEFAULT_SPEC) -> None:
    """Render the Triton model repository of a spec."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.serve import repository_dir
        from pipeline.serving.repository import render_repository

        console.print(f"rendered {render_repository(loaded, repository_dir(loaded))}", highlight=False, soft_wrap=True)
        return 0

    _exit(work)


@app.command()
def serve(
    spec: SpecOption = DEFAULT_SPEC,
    http_port: PortOption = None,
    grpc_port: PortOption = None,
    metrics_port: PortOption = None,
) -> None:
    """Serve a spec in the foreground; SIGINT or SIGTERM stops it."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.serve import serve as run

        asked = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        ports = PortsSpec(**{**loaded.ports.model_dump(), **{k: v for k, v in asked.items() if v is not None}})
        return run(loaded, console, ports)

    _exit(work)


@app.command()
def stop(spec: SpecOption = DEFAULT_SPEC) -> None:
    """Stop the server of a spec."""

    def work() -> int:
        from pipeline.client.serve import stop as run

        return run(DeploymentSpec.load(spec), console)

    _exit(work)


@app.command()
@takes_options
def request(
    prompt: Annotated[str, typer.Argument(help="the prompt")],
    options: GenerationOptions,
    spec: SpecOption = DEFAULT_SPEC,
    url: Annotated[str | None, typer.Option(help="host:port of gRPC; absent: the running server of the spec")] = None,
    stats: StatsOption = True,
) -> None:
    """Stream one answer from a server, coloured by who decided each token."""

    def work() -> int:
        from pipeline.client.ask import ask_server

        wanted = options.request(prompt)
        return ask_server(wanted, url or _address(DeploymentSpec.load(spec)), console, stats)

    _exit(work)


@app.command()
@takes_options
def generate(
    prompt: Annotated[str, typer.Argument(help="the prompt")],
    options: GenerationOptions,
    spec: SpecOption = DEFAULT_SPEC,
    stats: StatsOption = True,
) -> None:
    """Decode in this process, without Triton: the same loop on the same engines."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)  # first: what follows takes seconds to import
        wanted = options.request(prompt)
        from pipeline.client.ask import ask_local

        return ask_local(wanted, loaded, console, stats)

    _exit(work)


@app.command()
def load(
    spec: SpecOption = DEFAULT_SPEC,
    url: Annotated[str | None, typer.Option(help="host:port of gRPC; absent: the running server of the spec")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="requests in flight")] = 2,
    requests: Annotated[int, typer.Option(min=1, help="requests counted per mode")] = 16,
    max_tokens: MaxTokensOption = 32,
) -> None:
    """Load a server with perf_analyzer, plain and speculative side by side."""

    def work() -> int:
        from pipeline.client.load import run_load

        loaded = DeploymentSpec.load(spec)
        run_load(loaded, url or _address(loaded), concurrency, requests, max_tokens, console)
        return 0

    _exit(work)


@app.command()
def demo(
    spec: SpecOption = DEFAULT_SPEC,
    svg: Annotated[Path | None, typer.Option(help="save the session as a picture")] = None,
) -> None:
    """Serve on free ports, stream an answer, compare with plain decoding, stop."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.demo import run_demo
        from pipeline.client.terminal import recording_console, save_picture

        if svg is None:
            return run_demo(loaded, console)
        recorder = recording_console()
        status = run_demo(loaded, recorder)
        save_picture(recorder, svg, "make demo")
        return status

    _exit(work)


@app.command()
def bench(
    spec: SpecOption = DEFAULT_SPEC,
    prompts: Annotated[Path | None, typer.Option(help="JSONL with the keys text and kind")] = None,
    max_tokens: MaxTokensOption = 64,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here as well")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="fewer prompts, no comparison with transformers")] = False,
) -> None:
    """Measure plain and speculative decoding, served and in process, and transformers: ratios within one run."""

    def work() -> int:
        from pipeline.client.bench import run_bench

        return run_bench(DeploymentSpec.load(spec), console, prompts, max_tokens, json_file, quick)

    _exit(work)


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

    _exit(work)


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
        from pipeline.distillation.distill import DistillOptions
        from pipeline.distillation.distill import distill as run

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

    _exit(work)


@app.command()
def acceptance(
    spec: SpecOption = DEFAULT_SPEC,
    max_tokens: MaxTokensOption = 32,
    answers: Annotated[int, typer.Option(min=1, max=64, help="answers per prompt, each with a seed of its own")] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here as well")] = None,
) -> None:
    """Count how often sampled drafts are kept, by acceptance rule and temperature, in this process."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.bench_acceptance import run_acceptance

        return run_acceptance(loaded, console, max_tokens, answers, json_file)

    _exit(work)


@app.command()
def sampling(
    spec: SpecOption = DEFAULT_SPEC,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here as well")] = None,
) -> None:
    """Measure laws and rule, from logits to token ids, per option set: processor time of one thread."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.bench_sampling import run_sampling_costs

        return run_sampling_costs(loaded, console, json_file)

    _exit(work)


def _address(spec: DeploymentSpec) -> str:
    from pipeline.serving.ports import HOST
    from pipeline.serving.server_lock import read_record

    record = read_record(spec.engines_dir)
    return f"{HOST}:{record.grpc if record is not None else spec.ports.grpc}"


def _exit(work: Callable[[], int]) -> None:
    """Run a command; an error that a user can act on is one line and status 1."""
    try:
        status = work()
    except SpecDecodeError as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        status = 1
    except KeyboardInterrupt:
        status = 130
    raise typer.Exit(status)


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
