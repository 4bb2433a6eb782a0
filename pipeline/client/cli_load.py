"""The commands that put load on a server: `specdec load | soak`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.client.command import SpecOption, console, exit_with
from pipeline.client.options import MaxTokensOption
from pipeline.errors import InvalidRequestError
from pipeline.spec import DEFAULT_SPEC, DeploymentSpec

app = typer.Typer()

PromptsOption = Annotated[Path | None, typer.Option(help="JSONL with the keys text and kind; absent: a built-in set")]


@app.command()
def load(
    spec: SpecOption = DEFAULT_SPEC,
    url: Annotated[
        str | None, typer.Option(help="host:port of gRPC; absent: the spec's server, started where none runs")
    ] = None,
    tool: Annotated[str, typer.Option(help="perf_analyzer or genai-perf")] = "perf_analyzer",
    concurrency: Annotated[str, typer.Option(help='1,4,16: requests in flight; "" for none')] = "1,4",
    rates: Annotated[str, typer.Option(help='0.5,2: mean requests per second, Poisson; "" for none')] = "2",
    prompts: PromptsOption = None,
    requests: Annotated[int, typer.Option(min=1, help="per run: each load is run plainly and with speculation")] = 12,
    max_tokens: MaxTokensOption = 24,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy")] = 0.0,
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="apply the model's chat template")] = True,
    tokenizer: Annotated[
        str | None, typer.Option(help="genai-perf's: a folder or a Hugging Face name; absent: the target's")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for JSON, CSV and plot; absent: runs/<name>/load")] = None,
) -> None:
    """Load a server with perf_analyzer or genai-perf, plain and speculative side by side."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.load import LoadOptions, run_load
        from pipeline.load.level import parse_levels

        levels = tuple(parse_levels(concurrency, rates))
        options = LoadOptions(tool, levels, prompts, requests, max_tokens, temperature, chat, tokenizer, out)
        return run_load(loaded, url, options, console)

    exit_with(work)


@app.command()
def soak(
    spec: SpecOption = DEFAULT_SPEC,
    minutes: Annotated[float, typer.Option(min=0.05, max=10_080, help="of load")] = 10.0,
    clients: Annotated[int, typer.Option(min=1, max=256, help="that ask at the same time")] = 6,
    pool: Annotated[int, typer.Option(min=1, max=100_000, help="different requests")] = 160,
    faults: Annotated[str | None, typer.Option(help='kinds between commas; absent: all of them, "": none')] = None,
    recovery: Annotated[float, typer.Option(min=0.1, help="longest recovery from a killed process, seconds")] = 10.0,
    seed: Annotated[int, typer.Option(help="of everything that is random")] = 0,
    prompts: PromptsOption = None,
    url: Annotated[str | None, typer.Option(help="host:port of gRPC of a deployment that runs elsewhere")] = None,
    http_url: Annotated[str | None, typer.Option(help="its host:port of HTTP")] = None,
    metrics_url: Annotated[str | None, typer.Option(help="its host:port of metrics; absent: no look at them")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the report here as well")] = None,
) -> None:
    """Mixed load with cancellations and faults for some minutes, every answer compared with plain decoding."""

    def work() -> int:
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.soak import Remote, SoakOptions, run_soak

        if (url is None) != (http_url is None):
            raise InvalidRequestError("url", url, "url and http-url must be given together, or neither")
        remote = Remote(url, http_url, metrics_url) if url is not None and http_url is not None else None
        options = SoakOptions(minutes, clients, pool, faults, recovery, seed, prompts, json_file)
        return run_soak(loaded, remote, options, console)

    exit_with(work)
