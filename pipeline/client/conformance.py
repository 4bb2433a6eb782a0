"""`specdec conformance`: prove a deployment's text, by URL, by starting its server, or in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.client.prompts import load_prompts
from pipeline.client.serve import running_server
from pipeline.conformance.deployment import Deployment
from pipeline.conformance.local import local_deployment
from pipeline.conformance.report import exit_status, print_report, write_json
from pipeline.conformance.run import PROMPTS, all_checks, question
from pipeline.conformance.served import ServedDeployment
from pipeline.serving.ports import FREE_PORTS
from pipeline.spec import DeploymentSpec
from pipeline.text.tokenizer import TOKENIZER_NAME, Tokenizer


def run_conformance(
    spec: DeploymentSpec,
    console: Console,
    url: str | None,
    serve: bool,
    tokenizer: Path | None,
    prompts: Path | None,
    json_file: Path | None,
    quick: bool,
) -> int:
    """Question a deployment and report. Returns the exit status: 0 only where something passed and nothing failed.

    Args:
        spec: what is loaded or served where there is no url; its engine's tokenizer is the default one.
        url: host:port of a running deployment.
        serve: start the spec's server for the run.
        tokenizer: folder of the target's tokenizer.
        prompts: JSONL.
        json_file: written where given.
        quick: less of everything.
    """
    texts = PROMPTS if prompts is None else tuple(load_prompts(prompts))
    checks = all_checks(quick)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"))
    with _deployment(spec, console, url, serve, tokenizer) as deployment:
        started = time.monotonic()
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            task = progress.add_task("what is offered", total=len(checks), said="")
            answers = 0

            def begin(part: str, number: int) -> None:
                progress.update(task, description=part, completed=number)

            def tick() -> None:
                nonlocal answers
                answers += 1
                progress.update(task, said=f"{answers} answers")

            facts, findings = question(deployment, checks, texts, quick, begin, tick)
            progress.update(task, description="done", completed=len(checks))
        seconds = time.monotonic() - started
    print_report(console, f"conformance of {deployment.name}", findings, seconds)
    if json_file is not None:
        write_json(json_file, deployment.name, facts, findings, seconds)
        console.print(f"written to {json_file}", highlight=False)
    return exit_status(findings)


@contextmanager
def _deployment(
    spec: DeploymentSpec, console: Console, url: str | None, serve: bool, tokenizer: Path | None
) -> Iterator[Deployment]:
    if url is None and not serve:
        with ExitStack() as stack:
            with console.status("loading engines"):
                local = stack.enter_context(local_deployment(spec))
            yield local
        return
    folder = tokenizer or spec.engine_dir("target")
    codec = Tokenizer.load(folder) if tokenizer or (folder / TOKENIZER_NAME).is_file() else None
    if url is None:
        with running_server(spec, console, FREE_PORTS) as server:
            with _connected(server.grpc_address, codec) as served:
                yield served
    else:
        with _connected(url, codec) as served:
            yield served


@contextmanager
def _connected(address: str, codec: Tokenizer | None) -> Iterator[ServedDeployment]:
    served = ServedDeployment(address, codec)
    try:
        yield served
    finally:
        served.close()
