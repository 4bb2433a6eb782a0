"""Every metric of a server: name, kind, unit, labels. The dashboard, the alerts and the runbook name no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, eq=False)  # hashed by identity: it is a key where every round counts
class Metric:
    """One family.

    Attributes:
        name: as exported; a histogram exports name_bucket, name_sum and name_count.
        kind: a histogram is exported as counters in Prometheus' own form, see `series`.
        help: one line, with the unit.
        labels: names of its labels.
        buckets: upper bounds of a histogram, ascending, without +Inf.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Names of what it exports."""
        if self.kind != "histogram":
            return (self.name,)
        return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")


_SHORT_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# Names and meaning are those that vLLM made customary (vllm:spec_decode_num_*); positions count from 0.
DRAFTS = Metric("spec_decode_num_drafts_total", "counter", "Rounds in which draft tokens were verified.")
DRAFT_TOKENS = Metric("spec_decode_num_draft_tokens_total", "counter", "Draft tokens that were verified.")
ACCEPTED_TOKENS = Metric(
    "spec_decode_num_accepted_tokens_total", "counter", "Draft tokens that were accepted and committed."
)
ACCEPTED_PER_POS = Metric(
    "spec_decode_num_accepted_tokens_per_pos_total", "counter", "Accepted and committed, by position.", ("position",)
)
DRAFTED_PER_POS = Metric(
    "spec_decode_num_draft_tokens_per_pos_total", "counter", "Draft tokens verified, by position.", ("position",)
)
COMMITTED_TOKENS = Metric("spec_decode_committed_tokens_total", "counter", "Tokens given to clients.")
SPEC_COMMITTED_TOKENS = Metric(
    "spec_decode_spec_committed_tokens_total", "counter", "Tokens given to clients by rounds that verified drafts."
)
PROMPT_TOKENS = Metric("spec_decode_prompt_tokens_total", "counter", "Prompt tokens of answers that ended.")
ROUNDS = Metric(
    "spec_decode_rounds_total", "counter", "Rounds, by the draft's source; none is plain decoding.", ("source",)
)
DECISIONS = Metric("spec_decode_decisions_total", "counter", "Decisions on K, by the controller's reason.", ("reason",))
DRAFT_FAILURES = Metric(
    "spec_decode_draft_failures_total", "counter", "Draft calls that failed; the round ran plainly."
)
DRAFTS_AHEAD = Metric(
    "spec_decode_drafts_ahead_total", "counter", "Blocks drafted while the block before them was verified."
)
DRAFTS_AHEAD_USED = Metric(
    "spec_decode_drafts_ahead_used_total", "counter", "Rounds whose draft was made during the round before."
)
ANSWERS = Metric("spec_decode_answers_total", "counter", "Answers that ended, by finish reason.", ("finish_reason",))
CANCELLATIONS = Metric(
    "spec_decode_cancellations_total", "counter", "Answers and waiting requests that their client withdrew."
)
REFUSALS = Metric(
    "spec_decode_refusals_total",
    "counter",
    "Requests not answered: bad input, their own timeout, a full queue.",
    ("code",),
)
FAILURES = Metric("spec_decode_failures_total", "counter", "Requests that failed, by error code.", ("code",))

DRAFT_LENGTH = Metric(
    "spec_decode_draft_length", "histogram", "K: draft tokens verified in a round; 0 is plain.", (), tuple(range(17))
)
DRAFT_S = Metric("spec_decode_round_draft_seconds", "histogram", "Seconds of drafting in a round.", (), _SHORT_S)
VERIFY_S = Metric(
    "spec_decode_round_verify_seconds", "histogram", "Seconds of the target call in a round.", (), _SHORT_S
)
OVERHEAD_S = Metric("spec_decode_round_overhead_seconds", "histogram", "Other seconds of a round.", (), _SHORT_S)
FIRST_TOKEN_S = Metric(
    "spec_decode_time_to_first_token_seconds",
    "histogram",
    "Seconds from a request's arrival to its first committed token, waiting included.",
    (),
    _LONG_S,
)
TOKEN_S = Metric(
    "spec_decode_time_per_output_token_seconds",
    "histogram",
    "Seconds per committed token after the first, one value per answer.",
    (),
    _SHORT_S,
)

RUNNING = Metric("spec_decode_requests_running", "gauge", "Requests that are being decoded.")
WAITING = Metric("spec_decode_requests_waiting", "gauge", "Requests that wait for a thread or for KV blocks.")
DRAFT_USABLE = Metric("spec_decode_draft_usable", "gauge", "1; 0 while the draft model rests after a failure.")
ABANDONED = Metric(
    "spec_decode_abandoned_calls", "gauge", "Calls of a step model that never returned and hold a thread.", ("model",)
)

KV_BLOCKS = Metric(
    "spec_decode_kv_blocks",
    "gauge",
    "KV blocks: free, cached (held by the prefix index alone, evictable), used by running calls.",
    ("model", "state"),
)
KV_REUSED = Metric("spec_decode_kv_reused_blocks_total", "counter", "KV blocks taken over by calls.", ("model",))
KV_NEW = Metric("spec_decode_kv_new_blocks_total", "counter", "KV blocks newly filled by calls.", ("model",))
KV_PREEMPTIONS = Metric(
    "spec_decode_kv_preemptions_total",
    "counter",
    "Times that a call gave its KV blocks back.",
    ("model",),
)

# What each process exports: two that exported one series would take it from each other (`Metric` objects of Triton
# share a series by its labels, and the first that goes removes it).
ORCHESTRATOR_METRICS = (
    DRAFTS,
    DRAFT_TOKENS,
    ACCEPTED_TOKENS,
    ACCEPTED_PER_POS,
    DRAFTED_PER_POS,
    COMMITTED_TOKENS,
    SPEC_COMMITTED_TOKENS,
    PROMPT_TOKENS,
    ROUNDS,
    DECISIONS,
    DRAFT_FAILURES,
    DRAFTS_AHEAD,
    DRAFTS_AHEAD_USED,
    ANSWERS,
    CANCELLATIONS,
    REFUSALS,
    FAILURES,
    DRAFT_LENGTH,
    DRAFT_S,
    VERIFY_S,
    OVERHEAD_S,
    FIRST_TOKEN_S,
    TOKEN_S,
    RUNNING,
    WAITING,
    DRAFT_USABLE,
    ABANDONED,
)
STEP_METRICS = (KV_BLOCKS, KV_REUSED, KV_NEW, KV_PREEMPTIONS)
METRICS = (*ORCHESTRATOR_METRICS, *STEP_METRICS)
