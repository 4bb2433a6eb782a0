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
            log_probs=chunk.log_probs,
            cum_log_prob=chunk.cum_log_prob,
            sequence_index=chunk.sequence_index,
        )


def show_answer(replies: Iterator[Reply], console: Console, stats: bool) -> Reply | None:
    """Print answers while they come; returns the last reply."""
    legend(console)
    last: Reply | None = None
    log_probs: list[float] = []
    for last in replies:
        # Where every token has a reply of its own, the record of a round tells no single token's colour.
        own = last.round is not None and "".join(last.round["text"]) == last.text
        show_piece(console, last.text, last.round if own else None)
        log_probs.extend(last.log_probs)
        if last.finish_reason is not None:
            _show_end(last, log_probs, console, stats)
            log_probs = []
    return last


def _show_end(last: Reply, log_probs: list[float], console: Console, stats: bool) -> None:
    lines = []
    if last.cum_log_prob is not None:
        each = " ".join(f"{value:.3f}" for value in log_probs)
        lines.append(f"log-probs: {each}; sum {last.cum_log_prob:.3f}")
    if stats and last.statistics is not None:
        lines.append(statistics_line(last.statistics, last.seconds))
    console.print()
    for line in lines:
        console.print(line, style="dim", highlight=False, soft_wrap=True)
