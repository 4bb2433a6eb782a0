"""`specdec demo`: what a newcomer sees first."""

from __future__ import annotations

import time

from rich.console import Console

from pipeline.client.ask import show_answer
from pipeline.client.bench_served import ServedBench, ServedResult
from pipeline.client.prompts import load_prompts
from pipeline.client.serve import running_server
from pipeline.client.terminal import print_table
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.engine.fit import read_engine_manifest
from pipeline.orchestrator.request import GenerationRequest
from pipeline.serving.ports import FREE_PORTS
from pipeline.spec import DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

MAX_TOKENS = 64
TIE = 0.05  # log-probability; FP16 products of other row counts differ by less
KINDS = ("quote", "json", "edit", "code", "chat", "story")
COLUMNS = ("prompt", "plain tok/s", "spec. tok/s", "speedup", "acc. length", "rounds", "K used", "texts equal")


def run_demo(spec: DeploymentSpec, console: Console) -> int:
    """Serve, stream, compare, stop. Returns the exit status: 1 where speculation changed a text beyond a tie."""
    started = time.monotonic()
    prompts = {prompt.kind: prompt for prompt in reversed(load_prompts())}
    end_id = read_engine_manifest(spec, "target").end_id
    with running_server(spec, console, FREE_PORTS) as server:
        console.print(f"Triton serves spec_decode, target and draft on grpc {server.grpc_address}", highlight=False)
        with SpecDecodeClient(server.grpc_address) as client:
            first = prompts[KINDS[0]].text
            console.print(f"\n[bold]prompt:[/bold] {first}\n", highlight=False)
            show_answer(client.generate(_streamed(first)), console, stats=True)
            console.print()
            bench = ServedBench(client, Tokenizer.load(spec.engine_dir("target")), end_id, MAX_TOKENS)
            results = []
            with console.status("comparing with plain decoding") as status:
                for order, kind in enumerate(KINDS):
                    status.update(f"comparing with plain decoding: {kind}")
                    results.append(bench.measure(prompts[kind], order, ()))
            title = f"greedy, {MAX_TOKENS} tokens at most; plain: one direct call of the target"
            print_table(console, title, COLUMNS, [_row(result) for result in results])
    console.print(f"stopped; {time.monotonic() - started:.0f} s in all. Next: make serve, then make request PROMPT=...")
    return int(any(found.margin > TIE for result in results for found in result.divergences))


def _streamed(text: str) -> GenerationRequest:
    return GenerationRequest(
        text, MAX_TOKENS, stream=True, exclude_input_in_output=True, return_perf_metrics=True, chat=True
    )


def _row(result: ServedResult) -> tuple[str, ...]:
    used = [int(k) for k in result.statistics["histogram_by_draft_length"]]
    equal = "yes"
    for found in result.divergences:
        equal = f"tie ({found.margin:.3f})" if found.margin <= TIE else f"NO ({found.margin:.3f})"
    return (
        result.prompt.kind,
        f"{result.plain_tokens / result.plain_s:.1f}",
        f"{result.tokens / result.speculative_s:.1f}",
        f"{result.speedup:.2f}x",
        f"{result.statistics['mean_acceptance_length']:.2f}",
        str(result.statistics["rounds"]),
        f"{min(used)}-{max(used)}",
        equal,
    )
