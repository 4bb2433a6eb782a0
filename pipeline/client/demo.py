"""`specdec demo`: what a newcomer sees first."""

from __future__ import annotations

import time

from rich.console import Console

from pipeline.client.ask import show_answer
from pipeline.client.prompts import Prompt, load_prompts
from pipeline.client.serve import running_server
from pipeline.client.terminal import print_table
from pipeline.client.triton_client import Reply, SpecDecodeClient
from pipeline.orchestrator.request import GenerationRequest
from pipeline.serving.ports import FREE_PORTS
from pipeline.spec import DeploymentSpec

MAX_TOKENS = 64
KINDS = ("quote", "json", "edit", "code", "chat", "story")
COLUMNS = ("prompt", "plain tok/s", "spec. tok/s", "speedup", "acc. length", "rounds", "K used", "texts equal")


def run_demo(spec: DeploymentSpec, console: Console) -> int:
    """Serve, stream, compare, stop. Returns the exit status: 1 where speculation changed a text."""
    started = time.monotonic()
    prompts = {prompt.kind: prompt for prompt in reversed(load_prompts())}
    with running_server(spec, console, FREE_PORTS) as server:
        console.print(f"Triton serves spec_decode, target and draft on grpc {server.grpc_address}", highlight=False)
        with SpecDecodeClient(server.grpc_address) as client:
            first = prompts[KINDS[0]]
            console.print(f"\n[bold]prompt:[/bold] {first.text}\n", highlight=False)
            show_answer(client.generate(_request(first, None)), console, stats=True)
            rows, equal = [], True
            console.print()
            with console.status("comparing with plain decoding") as status:
                for kind in KINDS:
                    status.update(f"comparing with plain decoding: {kind}")
                    plain = _last(client, prompts[kind], 0)
                    fast = _last(client, prompts[kind], None)
                    equal &= plain[1] == fast[1]
                    rows.append(_row(kind, plain, fast))
            print_table(console, f"greedy, {MAX_TOKENS} tokens at most, one request at a time", COLUMNS, rows)
    console.print(f"stopped; {time.monotonic() - started:.0f} s in all. Next: make serve, then make request PROMPT=...")
    return 0 if equal else 1


def _request(prompt: Prompt, k: int | None) -> GenerationRequest:
    return GenerationRequest(
        text_input=prompt.text,
        max_tokens=MAX_TOKENS,
        stream=True,
        exclude_input_in_output=True,
        return_perf_metrics=True,
        num_draft_tokens=k,
        chat=True,
    )


def _last(client: SpecDecodeClient, prompt: Prompt, k: int | None) -> tuple[Reply, str]:
    replies = list(client.generate(_request(prompt, k)))
    return replies[-1], "".join(reply.text for reply in replies)


def _row(kind: str, plain: tuple[Reply, str], fast: tuple[Reply, str]) -> tuple[str, ...]:
    def speed(reply: Reply) -> float:
        assert reply.statistics is not None
        return float(reply.statistics["committed_tokens"]) / reply.seconds

    statistics = fast[0].statistics
    assert statistics is not None
    used = [int(k) for k in statistics["histogram_by_draft_length"]]
    return (
        kind,
        f"{speed(plain[0]):.1f}",
        f"{speed(fast[0]):.1f}",
        f"{speed(fast[0]) / speed(plain[0]):.2f}x",
        f"{statistics['mean_acceptance_length']:.2f}",
        str(statistics["rounds"]),
        f"{min(used)}-{max(used)}",
        "yes" if plain[1] == fast[1] else "NO",
    )
