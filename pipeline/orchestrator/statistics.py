"""What happened in a request: per round while it runs, summed when it ends."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class RoundRecord:
    """One draft-verify-rollback cycle.

    Attributes:
        source: "ngram", "model", or "none" for plain decoding.
        reason: why the controller chose this K.
        drafted: draft tokens that were verified.
        accepted: of those, how many were kept.
        committed: tokens given to the client, after EOS, stop words and length.
        text: the text of the accepted tokens, then of the correction or bonus.
        draft_s, verify_s, overhead_s: wall seconds; the first is what was waited for the draft.
        ahead: its draft was made during the round before.
    """

    index: int
    source: str
    reason: str
    drafted: int
    accepted: int
    committed: int
    text: tuple[str, str] = ("", "")
    draft_s: float = 0.0
    verify_s: float = 0.0
    overhead_s: float = 0.0
    ahead: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class RequestStatistics:
    """Sums over a request, in the shape that benchmark tools read (`spec_decode_stats`).

    `mean_acceptance_length` counts committed tokens per speculative round, correction or bonus included;
    `draft_acceptance_rate` is accepted over drafted; histograms leave the correction or bonus out. `decisions` counts
    all rounds by reason, `plain_decisions` those without a verified draft: why K was 0. `drafts_ahead` counts blocks
    that were drafted while the one before was verified, `drafts_ahead_used` the rounds that used one.
    """

    prompt_tokens: int
    committed_tokens: int
    rounds: int
    spec_rounds: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: tuple[int, ...]
    histogram_by_draft_length: dict[int, int]
    rounds_by_source: dict[str, int]
    decisions: dict[str, int]
    plain_decisions: dict[str, int]
    finish_reason: str
    rule: str
    seed: int
    reproducible: bool
    draft_failures: int
    drafts_ahead: int
    drafts_ahead_used: int
    target_reused_tokens: int
    target_computed_tokens: int
    draft_s: float
    verify_s: float
    overhead_s: float
    first_token_s: float
    total_s: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class StatisticsCollector:
    """Accumulates rounds; knows only what was committed."""

    prompt_tokens: int
    rule: str
    seed: int
    reproducible: bool
    draft_failures: int = 0
    drafts_ahead: int = 0
    drafts_ahead_used: int = 0
    target_reused_tokens: int = 0
    target_computed_tokens: int = 0
    committed: int = 0
    rounds: int = 0
    spec_committed: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    overhead_s: float = 0.0
    _accepted: Counter[int] = field(default_factory=Counter)
    _drafted: Counter[int] = field(default_factory=Counter)
    _sources: Counter[str] = field(default_factory=Counter)
    _reasons: Counter[str] = field(default_factory=Counter)
    _plain_reasons: Counter[str] = field(default_factory=Counter)

    def add(self, record: RoundRecord) -> None:
        self.rounds += 1
        self.committed += record.committed
        self.draft_s += record.draft_s
        self.verify_s += record.verify_s
        self.overhead_s += record.overhead_s
        self.drafts_ahead_used += record.ahead
        self._sources[record.source] += 1
        self._reasons[record.reason] += 1
        self._drafted[record.drafted] += 1
        if record.drafted:
            self.spec_committed += record.committed
            self._accepted[record.accepted] += 1
        else:
            self._plain_reasons[record.reason] += 1

    def finish(self, reason: str, first_token_s: float, total_s: float) -> RequestStatistics:
        spec_rounds = sum(self._accepted.values())
        drafted = sum(k * n for k, n in self._drafted.items())
        accepted = sum(k * n for k, n in self._accepted.items())
        longest = max((k for k, n in self._drafted.items() if n), default=0)
        return RequestStatistics(
            prompt_tokens=self.prompt_tokens,
            committed_tokens=self.committed,
            rounds=self.rounds,
            spec_rounds=spec_rounds,
            num_draft_tokens=drafted,
            num_accepted_draft_tokens=accepted,
            mean_acceptance_length=self.spec_committed / spec_rounds if spec_rounds else 0.0,
            draft_acceptance_rate=accepted / drafted if drafted else 0.0,
            acceptance_histogram=tuple(self._accepted[k] for k in range(longest + 1)),
            histogram_by_draft_length=dict(sorted(self._drafted.items())),
            rounds_by_source=dict(self._sources),
            decisions=dict(self._reasons),
            plain_decisions=dict(self._plain_reasons),
            finish_reason=reason,
            rule=self.rule,
            seed=self.seed,
            reproducible=self.reproducible,
            draft_failures=self.draft_failures,
            drafts_ahead=self.drafts_ahead,
            drafts_ahead_used=self.drafts_ahead_used,
            target_reused_tokens=self.target_reused_tokens,
            target_computed_tokens=self.target_computed_tokens,
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            overhead_s=self.overhead_s,
            first_token_s=first_token_s,
            total_s=total_s,
        )
