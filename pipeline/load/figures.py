"""What one run of a load test measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.load.level import Level

Mode = Literal["plain", "speculative"]
MODES: tuple[Mode, Mode] = ("plain", "speculative")
PLAIN, SPECULATIVE = MODES


@dataclass(frozen=True)
class LoadFigures:
    """One run; times in milliseconds, seen by the client.

    Attributes:
        mode: plain requests say num_draft_tokens = 0, speculative ones leave K to the deployment.
        level: how requests arrived.
        requests: that were answered whole.
        tokens: of their answers.
        first_token_ms, first_token_p95_ms: from sending to the first response; median and 95th percentile.
        per_token_ms, per_token_p95_ms: from the first to the last response over the tokens after the first response,
            one value per request; median and 95th percentile.
        latency_ms: from sending to the last response; median.
        tokens_per_s, requests_per_s: of all requests together.
        acceptance: accepted over drafted tokens; None where nothing was drafted.
        acceptance_length: committed tokens per speculative round, correction or bonus included; None as above.
        calls: of each composing model, per request; empty where the tool does not tell.
    """

    mode: Mode
    level: Level
    requests: int
    tokens: int
    first_token_ms: float
    first_token_p95_ms: float
    per_token_ms: float
    per_token_p95_ms: float
    latency_ms: float
    tokens_per_s: float
    requests_per_s: float
    acceptance: float | None = None
    acceptance_length: float | None = None
    calls: Mapping[str, float] = field(default_factory=dict)
