"""The short benchmark of `make gpu-check`: greedy answers, plain and speculative."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from gpu_report import Report

from pipeline.client.prompts import load_prompts
from pipeline.client.triton_client import Reply
from pipeline.orchestrator.request import GenerationRequest

Generate = Callable[[GenerationRequest], Iterator[Reply]]

KINDS = ("quote", "json", "code", "chat")
MAX_TOKENS = 96


@dataclass(frozen=True)
class Measurement:
    """One prompt, greedy, plain (K = 0) and with the controller's K."""

    kind: str
    plain_tokens_per_s: float
    speculative_tokens_per_s: float
    mean_acceptance_length: float
    equal: bool  # the same text

    @property
    def speedup(self) -> float:
        return self.speculative_tokens_per_s / self.plain_tokens_per_s


def compare(generate: Generate, report: Report, name: str = "benchmark") -> str:
    """A prompt of each kind. The figures go into the report as they are, under `name`."""
    prompts = {prompt.kind: prompt.text for prompt in reversed(load_prompts())}
    found = [measure(generate, kind, prompts[kind]) for kind in KINDS]
    report.data[name] = [{**asdict(one), "speedup": round(one.speedup, 3)} for one in found]
    lines = [
        f"{one.kind}: {one.plain_tokens_per_s:.1f} -> {one.speculative_tokens_per_s:.1f} tokens/s, {one.speedup:.2f}x; "
        f"acceptance length {one.mean_acceptance_length:.2f}, texts {'equal' if one.equal else 'differ'}"
        for one in found
    ]
    return "\n".join(lines)


def measure(generate: Generate, kind: str, text: str) -> Measurement:
    """Ask twice each way and take the second: the first fills caches and captures graphs."""
    answers: dict[int | None, tuple[float, tuple[int, ...], dict[str, Any]]] = {}
    for k in (0, None, 0, None):
        started = time.perf_counter()
        replies = list(generate(GenerationRequest(text, MAX_TOKENS, chat=True, stream=True, num_draft_tokens=k)))
        seconds = time.perf_counter() - started
        tokens = tuple(token for reply in replies for token in reply.token_ids)
        answers[k] = len(tokens) / seconds, tokens, replies[-1].statistics or {}
    plain, speculative = answers[0], answers[None]
    return Measurement(
        kind=kind,
        plain_tokens_per_s=plain[0],
        speculative_tokens_per_s=speculative[0],
        mean_acceptance_length=float(speculative[2].get("mean_acceptance_length", 0.0)),
        equal=plain[1] == speculative[1],
    )
