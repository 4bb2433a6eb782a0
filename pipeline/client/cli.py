"""The `specdec` command: options in, one call of the file that does the work, exit status out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.client.cli_bench import app as benches
from pipeline.client.cli_load import app as loading
from pipeline.client.cli_measure import app as measuring
from pipeline.client.cli_planning import app as planning
from pipeline.client.command import SpecOption, console, exit_with
from pipeline.client.options import GenerationOptions, takes_options
from pipeline.spec import DEFAULT_SPEC, ROOT, DeploymentSpec, PortsSpec

app = typer.Typer(
    help="Speculative decoding: build engines, serve them in Triton, ask for text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(benches)
app.add_typer(loading)
app.add_typer(measuring)
app.add_typer(planning)

PortOption = Annotated[int | None, typer.Option(min=0, max=65535, help="0 takes a free one; absent: the spec's")]
TraceOption = Annotated[Path | None, typer.Option(help="append a JSON line per round, for `specdec replay`")]
StatsOption = Annotated[bool, typer.Option("--stats/--no-stats", help="a line of statistics after the answer")]


@app.command()
def engines(
    spec: SpecOption = DEFAULT_SPEC,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the commands, run none")] = False,
) -> None:
    """Build both engines of a spec; what has not changed is left alone."""
    script = ROOT / "build" / "engines.py"
    flags = ["--dry-run"] if dry_run else []
    raise typer.Exit(subprocess.run([sys.executable, str(script), str(spec), *flags]).returncode)


@app.command()
def repo(spec: SpecOption = DEFAULT_SPEC) -> None:
    """Render the Triton model repository of a spec."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.serve import repository_dir
        from pipeline.serving.repository import render_repository

        console.print(f"rendered {render_repository(loaded, repository_dir(loaded))}", highlight=False, soft_wrap=True)
        return 0

    exit_with(work)


@app.command()
def serve(
    spec: SpecOption = DEFAULT_SPEC,
    http_port: PortOption = None,
    grpc_port: PortOption = None,
    metrics_port: PortOption = None,
    trace: TraceOption = None,
    otlp: Annotated[
        str | None, typer.Option(help="collector that OpenTelemetry spans go to; absent: the spec's")
    ] = None,
) -> None:
    """Serve a spec in the foreground; SIGINT or SIGTERM stops it."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        if otlp is not None:
            loaded = DeploymentSpec.check({**loaded.model_dump(), "otlp": {**loaded.otlp.model_dump(), "url": otlp}})
        from pipeline.client.serve import serve as run

        asked = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        ports = PortsSpec(**{**loaded.ports.model_dump(), **{k: v for k, v in asked.items() if v is not None}})
        return run(_traced(loaded, trace), console, ports)

    exit_with(work)


@app.command()
def stop(spec: SpecOption = DEFAULT_SPEC) -> None:
    """Stop the server of a spec."""

    def work() -> int:
        from pipeline.client.serve import stop as run

        return run(DeploymentSpec.load(spec), console)

    exit_with(work)


@app.command()
def speculation(
    setting: Annotated[str | None, typer.Argument(help="auto, off or K; absent: say what holds")] = None,
    spec: SpecOption = DEFAULT_SPEC,
) -> None:
    """Switch speculation of a running server for all requests, without a reload."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.serve import switch_speculation

        return switch_speculation(loaded, console, setting)

    exit_with(work)


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

    exit_with(work)


@app.command()
@takes_options
def generate(
    prompt: Annotated[str, typer.Argument(help="the prompt")],
    options: GenerationOptions,
    spec: SpecOption = DEFAULT_SPEC,
    trace: TraceOption = None,
    stats: StatsOption = True,
) -> None:
    """Decode in this process, without Triton: the same loop on the same engines."""

    def work() -> int:
        loaded = _traced(DeploymentSpec.load(spec), trace)  # first: what follows takes seconds to import
        wanted = options.request(prompt)
        from pipeline.client.ask import ask_local

        return ask_local(wanted, loaded, console, stats)

    exit_with(work)


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

    exit_with(work)


def _traced(spec: DeploymentSpec, path: Path | None) -> DeploymentSpec:
    """The spec with its trace file, or that of the command, found writable."""
    traced = spec if path is None else spec.model_copy(update={"trace": path.resolve()})
    if traced.trace is not None:
        from pipeline.orchestrator.trace.writer import check_trace_path

        check_trace_path(traced.trace)
    return traced


def _address(spec: DeploymentSpec) -> str:
    from pipeline.serving.ports import HOST
    from pipeline.serving.server_lock import read_record

    record = read_record(spec.engines_dir)
    return f"{HOST}:{record.grpc if record is not None else spec.ports.grpc}"


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
