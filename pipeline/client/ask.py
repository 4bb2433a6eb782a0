"""One prompt, one streamed answer: from a server or from this process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console

from pipeline.client.local import local_orchestrator
from pipeline.client.terminal import legend, show_piece, statistics_line
from pipeline.client.triton_client import Reply, SpecDecodeClient
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.request import GenerationRequest
from pipeline.spec import DeploymentSpec


def ask_server(request: GenerationRequest, address: str, console: Console, stats: bool) -> int:
    """Stream an answer from host:port. Returns the exit status."""
    with SpecDecodeClient(address) as client:
        show_answer(client.generate(request), console, stats)
    return 0


def ask_local(request: GenerationRequest, spec: DeploymentSpec, console: Console, stats: bool) -> int:
    """Stream an answer that this process decodes. Returns the exit status."""
    with console.status("loading engines"):
        context = local_orchestrator(spec)
        orchestrator = context.__enter__()
    try:
        show_answer(local_replies(orchestrator, request), console, stats)
    finally:
        context.__exit__(None, None, None)
    return 0


def local_replies(orchestrator: Orchestrator, request: GenerationRequest) -> Iterator[Reply]:
    """The same replies that a server would send."""
    started = time.perf_counter()
    for chunk in orchestrator.generate(request):
        statistics: dict[str, Any] | None = None
        if chunk.statistics is not None:
            statistics = json.loads(chunk.statistics.to_json())
        yield Reply(
            text=chunk.text,
            token_ids=chunk.token_ids,
            round=asdict(chunk.round) if chunk.round is not None else None,
            statistics=statistics,
            finish_reason=chunk.finish_reason,
            seconds=time.perf_counter() - started,
        )


def show_answer(replies: Iterator[Reply], console: Console, stats: bool) -> Reply | None:
    """Print an answer while it comes; returns the last reply."""
    legend(console)
    last: Reply | None = None
    for last in replies:
        show_piece(console, last.text, last.round)
    console.print()
    if stats and last is not None and last.statistics is not None:
        line = statistics_line(last.statistics, last.seconds)
        console.print(line, style="dim", highlight=False, soft_wrap=True)
    return last
