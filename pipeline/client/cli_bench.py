"""The commands that measure a deployment and show it: `specdec bench | report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.client.command import SpecOption, console, exit_with
from pipeline.client.options import MaxTokensOption
from pipeline.errors import InvalidRequestError
from pipeline.spec import DEFAULT_SPEC, DeploymentSpec

app = typer.Typer()
MOST_CLIENTS = 1024


def parse_counts(field: str, text: str) -> list[int]:
    """Positive numbers between commas, ascending and each once.

    Raises:
        InvalidRequestError: naming the field, its value and its limit.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MOST_CLIENTS for part in parts):
        raise InvalidRequestError(field, text, f"must be numbers from 1 to {MOST_CLIENTS} between commas")
    return sorted({int(part) for part in parts})


@app.command()
def bench(
    spec: SpecOption = DEFAULT_SPEC,
    prompts: Annotated[Path | None, typer.Option(help="JSONL with the keys text and kind")] = None,
    max_tokens: MaxTokensOption = 64,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here as well")] = None,
    report: Annotated[Path | None, typer.Option(help="write a page with plots (.html) here as well")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="the short form: fewer prompts, pairs and settings")] = False,
    concurrency: Annotated[str | None, typer.Option(help="1,4,16: measure so many requests at once, no more")] = None,
    pairs: Annotated[
        int | None, typer.Option(min=1, max=1000, help="of plain and speculative runs per concurrency; absent: 30")
    ] = None,
    llama_cpp: Annotated[
        bool, typer.Option("--llama-cpp", help="beside llama.cpp, too; needs the extra bench")
    ] = False,
    orchestrator: Annotated[
        bool, typer.Option("--orchestrator", help="measure the loop alone, without models, no more")
    ] = False,
) -> None:
    """Measure plain and speculative decoding, served and in process, and what others reach: ratios within one run."""

    def work() -> int:
        counts = None if concurrency is None else tuple(parse_counts("concurrency", concurrency))
        loaded = DeploymentSpec.load(spec)
        from pipeline.client.bench import BenchOptions, check_outputs, run_bench, write_report

        if orchestrator:
            from pipeline.client.bench_orchestrator import bench_orchestrator
            from pipeline.client.bench_tables import conditions

            check_outputs(json_file, report)
            part = bench_orchestrator(loaded, console)
            write_report(
                {"conditions": conditions(loaded, None, False), "orchestrator": part}, json_file, report, console
            )
            return 0
        options = BenchOptions(prompts, max_tokens, json_file, report, quick, counts, pairs, llama_cpp)
        return run_bench(loaded, console, options)

    exit_with(work)


@app.command()
def report(
    figures: Annotated[Path, typer.Argument(help="written by `bench --json`")],
    out: Annotated[Path | None, typer.Option(help="the page; absent: beside the figures, .html")] = None,
) -> None:
    """Make the page of a bench anew from its figures: one HTML file with tables and plots, nothing from elsewhere."""

    def work() -> int:
        from pipeline.bench.page import read_report, save_page

        page = out or figures.with_suffix(".html")
        save_page(read_report(figures), page)
        console.print(f"page written to {page}", highlight=False, soft_wrap=True)
        return 0

    exit_with(work)
