"""A call that runs in an engine: from its input to its result."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from torch import Tensor

from pipeline.engine.batch import Row
from pipeline.engine.step import DEFAULT_PRIORITY, KvUse, StepRequest, StepResult
from pipeline.kv_cache.page_table import PageTable
from pipeline.sampling.call import VerifyCall


@dataclass(eq=False)
class Call:
    """State of one call. `known` is every token whose place in the sequence is settled: input, then output.

    Attributes:
        request: what was asked.
        rule: the acceptance rule, resolved.
        future: where the result goes.
        drafts: the drafts that are verified (perhaps fewer than were sent).
        table: pages, while it runs.
        number: order of arrival at the engine.
        preempted: how often it gave its pages back.
    """

    request: StepRequest
    rule: str
    future: Future[StepResult]
    drafts: tuple[int, ...]
    table: PageTable | None = None
    known: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    accepted: int = 0
    uniforms_used: int = 0
    computed_tokens: int = 0
    compute_s: float = 0.0
    log_laws: list[Tensor] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stopped: bool = False
    number: int = 0
    preempted: int = 0

    def __post_init__(self) -> None:
        self.known = list(self.request.input_ids)

    @property
    def capacity(self) -> int:
        """Tokens whose KV this call may compute."""
        return len(self.request.input_ids) + max(len(self.drafts) + 1, self.request.max_new_tokens)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Who goes first; no two calls of an engine have the same."""
        return (self.request.priority or DEFAULT_PRIORITY, self.request.arrival, self.number)

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next is decided, drafts left out."""
        return len(self.known) - (0 if self.table is None else self.table.length)

    @property
    def needed(self) -> int:
        """Tokens whose places it must have to go on."""
        return len(self.known) + len(self.pending_drafts)

    def wanted(self, ahead: int) -> int:
        """Tokens whose places it asks for: `ahead` of what it has, or all where it has lost its places once."""
        if self.preempted:
            return self.capacity
        return min(self.capacity, len(self.known) + max(len(self.pending_drafts) + 1, ahead))

    @property
    def pending_drafts(self) -> tuple[int, ...]:
        """Drafts that are still to be decided: they are all decided by the first tokens."""
        return () if self.output else self.drafts

    @property
    def takes_best(self) -> bool:
        """True where the next tokens are the largest logits as they are, and nothing else is wanted of them."""
        request = self.request
        return (
            request.sampling.greedy
            and not request.sampling.edited
            and not (request.end_id is not None and request.min_tokens > len(self.output))
            and not (request.return_logits or request.return_log_probs)
        )

    @property
    def goes_on(self) -> bool:
        """True where this call has ended by its length alone and its caller will come back for more."""
        request = self.request
        return (
            request.continues
            and not (self.drafts or self.stopped or request.return_logits or request.return_log_probs)
            and len(self.output) == request.max_new_tokens
        )

    def next_row(self, budget: int) -> Row:
        """The next part of the work, at most `budget` tokens."""
        assert self.table is not None
        start = self.table.length
        first_pass = not self.output
        pending = self.known[start:]
        if first_pass:
            pending = [*pending, *self.drafts]
        if len(pending) > budget:
            # Drafts ride on the last chunk only: logits are wanted at them.
            chunk = min(budget, len(self.known) - 1 - start)
            if chunk > 0:
                return Row(tuple(pending[:chunk]), start, self.table, 0)
        return Row(tuple(pending), start, self.table, 1 + len(self.drafts) if first_pass else 1)

    def verify_call(self) -> VerifyCall:
        """What decides this call's next tokens."""
        request = self.request
        drafts = self.pending_drafts
        return VerifyCall(
            drafts=drafts,
            draft_logits=request.draft_logits[: len(drafts)] if drafts and request.draft_logits is not None else None,
            sampling=request.sampling,
            rule=self.rule,
            seed=request.seed,
            start=self.uniforms_used,
            tokens=self.known,
            end_id=request.end_id,
            min_tokens=max(0, request.min_tokens - len(self.output)),
        )

    def commit(self, tokens: list[int]) -> bool:
        """Append decided tokens; true when the call has ended. The end token is never part of the output."""
        for token in tokens:
            if token == self.request.end_id:
                return True
            self.output.append(token)
            self.known.append(token)
        return bool(self.drafts) or len(self.output) >= self.request.max_new_tokens

    def result(self, log_laws: Tensor | None) -> StepResult:
        table = self.table
        assert table is not None
        return StepResult(
            output_ids=tuple(self.output),
            total_draft_tokens=len(self.drafts),
            total_accepted_draft_tokens=self.accepted,
            generation_logits=None if log_laws is None else log_laws.cpu().numpy(),
            log_probs=tuple(self.log_probs),
            kv=KvUse(
                alloc_new_blocks=table.new_blocks,
                reused_blocks=table.reused_blocks,
                alloc_total_blocks=len(table.blocks),
                reused_tokens=table.reused_tokens,
                computed_tokens=self.computed_tokens,
                preempted=self.preempted,
            ),
            compute_s=self.compute_s,
        )
