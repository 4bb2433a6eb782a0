"""The `specdec` command: options in, one call of the file that does the work, exit status out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pipeline.errors import SpecDecodeError
from pipeline.orchestrator.request import DEFAULT_MAX_TOKENS, GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.spec import DEFAULT_SPEC, ROOT, DeploymentSpec, PortsSpec

app = typer.Typer(
    help="Speculative decoding: build engines, serve them in Triton, ask for text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

SpecOption = Annotated[Path, typer.Option("--spec", help="deployment spec, a YAML file")]
ChatOption = Annotated[bool, typer.Option("--chat", help="apply the model's chat template to the prompt")]
MaxTokensOption = Annotated[int, typer.Option("--max-tokens", help="tokens to generate at most")]
TemperatureOption = Annotated[float, typer.Option("--temperature", help="0 is greedy")]
TopKOption = Annotated[int, typer.Option("--top-k", help="0 is off")]
TopPOption = Annotated[float, typer.Option("--top-p", help="1.0 is off")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="absent: drawn from the operating system")]
StopOption = Annotated[list[str] | None, typer.Option("--stop", help="text that ends the answer; may be repeated")]
DraftTokensOption = Annotated[
    int | None, typer.Option("-k", "--num-draft-tokens", help="0: plain decoding, n: fixed K, absent: controller")
]
RuleOption = Annotated[str, typer.Option("--rule", help="acceptance rule: auto, block, token or match")]
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
def request(
    prompt: Annotated[str, typer.Argument(help="the prompt")],
    spec: SpecOption = DEFAULT_SPEC,
    url: Annotated[str | None, typer.Option(help="host:port of gRPC; absent: the running server of the spec")] = None,
    chat: ChatOption = False,
    max_tokens: MaxTokensOption = DEFAULT_MAX_TOKENS,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
    stop: StopOption = None,
    num_draft_tokens: DraftTokensOption = None,
    rule: RuleOption = "auto",
    stats: StatsOption = True,
) -> None:
    """Stream one answer from a server, coloured by who decided each token."""

    def work() -> int:
        from pipeline.client.ask import ask_server

        wanted = _request(prompt, chat, max_tokens, temperature, top_k, top_p, seed, stop, num_draft_tokens, rule)
        return ask_server(wanted, url or _address(DeploymentSpec.load(spec)), console, stats)

    _exit(work)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="the prompt")],
    spec: SpecOption = DEFAULT_SPEC,
    chat: ChatOption = False,
    max_tokens: MaxTokensOption = DEFAULT_MAX_TOKENS,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
    stop: StopOption = None,
    num_draft_tokens: DraftTokensOption = None,
    rule: RuleOption = "auto",
    stats: StatsOption = True,
) -> None:
    """Decode in this process, without Triton: the same loop on the same engines."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)  # first: what follows takes seconds to import
        from pipeline.client.ask import ask_local

        wanted = _request(prompt, chat, max_tokens, temperature, top_k, top_p, seed, stop, num_draft_tokens, rule)
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


def _request(
    prompt: str,
    chat: bool,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    stop: list[str] | None,
    num_draft_tokens: int | None,
    rule: str,
) -> GenerationRequest:
    return GenerationRequest(
        text_input=prompt,
        max_tokens=max_tokens,
        sampling=SamplingParams(temperature, top_k, top_p),
        seed=seed,
        stop_words=tuple(stop or ()),
        stream=True,
        exclude_input_in_output=True,
        return_perf_metrics=True,
        num_draft_tokens=num_draft_tokens,
        acceptance_rule=rule,
        chat=chat,
    )


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
