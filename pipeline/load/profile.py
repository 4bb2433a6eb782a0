"""Reads perf_analyzer's profile export: when every response came, and what was in it.

Format: triton-inference-server/perf_analyzer, class ProfileDataExporter: experiments[].requests[] with
timestamp, response_timestamps (nanoseconds) and response_outputs. An output that a response does not hold is exported
all the same, with whatever lies in memory; so only `token_ids` and `spec_decode_stats` are read, which every response
of ours holds or leaves empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ServerError
from pipeline.load.figures import LoadFigures, Mode
from pipeline.load.level import Level

_STATISTICS = "spec_decode_stats"


@dataclass(frozen=True)
class ProfiledRequest:
    """One answered request; times in nanoseconds of one clock.

    Attributes:
        sent: when it was sent.
        responses: (time, new tokens) of every response that holds tokens.
        statistics: its `spec_decode_stats`.
    """

    sent: int
    responses: tuple[tuple[int, int], ...]
    statistics: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.responses)

    @property
    def first_token_ms(self) -> float:
        return (self.responses[0][0] - self.sent) / 1e6

    @property
    def latency_ms(self) -> float:
        return (self.responses[-1][0] - self.sent) / 1e6

    @property
    def per_token_ms(self) -> float | None:
        """None where all tokens came at once."""
        later = self.tokens - self.responses[0][1]
        return (self.responses[-1][0] - self.responses[0][0]) / 1e6 / later if later else None


def read_profile(path: Path) -> list[ProfiledRequest]:
    """The answered requests of an export.

    Raises:
        ServerError: it is no such export, or holds a request that was not answered whole.
    """
    try:
        requests = [entry for run in json.loads(path.read_text())["experiments"] for entry in run["requests"]]
        found = [_request(entry) for entry in requests]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerError(f"{path} is no profile export of perf_analyzer: {type(error).__name__} {error}") from error
    unanswered = sum(request is None for request in found)
    if unanswered or not found:
        raise ServerError(f"{unanswered} of {len(found)} requests in {path} were not answered whole")
    return [request for request in found if request is not None]


def measure(
    mode: Mode, level: Level, requests: Sequence[ProfiledRequest], calls: Mapping[str, float] | None = None
) -> LoadFigures:
    """Figures of one run.

    Args:
        requests: at least one.
        calls: of each composing model, in all.
    """
    seconds = (max(r.responses[-1][0] for r in requests) - min(r.sent for r in requests)) / 1e9
    tokens = sum(request.tokens for request in requests)
    per_token = [value for request in requests if (value := request.per_token_ms) is not None]
    first_token, first_token_p95 = _median_and_p95([request.first_token_ms for request in requests])
    token, token_p95 = _median_and_p95(per_token or [0.0])
    acceptance, length = acceptance_of(requests)
    return LoadFigures(
        mode=mode,
        level=level,
        requests=len(requests),
        tokens=tokens,
        first_token_ms=first_token,
        first_token_p95_ms=first_token_p95,
        per_token_ms=token,
        per_token_p95_ms=token_p95,
        latency_ms=_median_and_p95([request.latency_ms for request in requests])[0],
        tokens_per_s=tokens / seconds,
        requests_per_s=len(requests) / seconds,
        acceptance=acceptance,
        acceptance_length=length,
        calls={name: count / len(requests) for name, count in (calls or {}).items()},
    )


def acceptance_of(requests: Sequence[ProfiledRequest]) -> tuple[float | None, float | None]:
    """Accepted over drafted, and committed tokens per speculative round; None where nothing was drafted."""
    drafted = sum(request.statistics["num_draft_tokens"] for request in requests)
    if not drafted:
        return None, None
    rounds = sum(request.statistics["spec_rounds"] for request in requests)
    committed = sum(r.statistics["mean_acceptance_length"] * r.statistics["spec_rounds"] for r in requests)
    return sum(r.statistics["num_accepted_draft_tokens"] for r in requests) / drafted, committed / rounds


def _request(entry: Mapping[str, Any]) -> ProfiledRequest | None:
    """None where the answer has no end."""
    responses = []
    statistics: Mapping[str, Any] | None = None
    for time_ns, outputs in zip(entry["response_timestamps"], entry["response_outputs"], strict=True):
        ids = outputs.get("token_ids", [])
        # One id is exported as a number. Shorter rows are filled with -1.
        count = sum(token >= 0 for token in (ids if isinstance(ids, list) else [ids]))
        if count:
            responses.append((int(time_ns), count))
        if outputs.get(_STATISTICS):
            statistics = json.loads(outputs[_STATISTICS])
    if statistics is None or not responses:
        return None
    return ProfiledRequest(int(entry["timestamp"]), tuple(responses), statistics)


def _median_and_p95(values: Sequence[float]) -> tuple[float, float]:
    return float(np.percentile(values, 50)), float(np.percentile(values, 95))
