"""A loop over scripted engines: the target follows a script, the draft is right for as long as it is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

from pipeline.drafting.base import Draft, DraftContext, Drafter, DraftSession, Offer
from pipeline.engine.manifest import Capabilities, CostTable, Limits, Manifest
from pipeline.engine.step import KvUse, StepModel, StepRequest, StepResult
from pipeline.orchestrator.admission import Admission
from pipeline.orchestrator.controllers.base import ControllerFactory
from pipeline.orchestrator.controllers.fixed import FixedFactory
from pipeline.orchestrator.intake import TargetFacts
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.orchestrator.statistics import RequestStatistics
from pipeline.orchestrator.switch import SpeculationSwitch
from pipeline.orchestrator.trace.writer import TraceWriter
from pipeline.orchestrator.verifier import StepVerifier
from pipeline.sampling.params import OPTIONS
from pipeline.text.tokenizer import Tokenizer

from .byte_tokenizer import END, ByteTokenizer

WRONG, INSTEAD = 1, ord("!")  # a token that no script holds, and what follows an impossible end
LIMITS = Limits(max_seq_len=200, max_draft_len=8, max_requests=4, kv_blocks=64, tokens_per_block=8)
CAPABILITIES = Capabilities(
    rules=("block", "token", "match"),
    draft_options=("temperature", "top_k", "top_p"),
    options=OPTIONS,
    generation_logits="log_law",
    log_probs=True,
    drops_drafts=False,
    deterministic=True,
)


def make_manifest(**changes: Any) -> Manifest:
    """A manifest of nothing in particular."""
    fields: dict[str, Any] = {
        "version": 1,
        "role": "draft",
        "engine": "embedded",
        "model": "scripted",
        "source_sha256": "",
        "dtype": "float32",
        "vocab_size": END + 1,
        "padded_vocab_size": END + 1,
        "end_id": END,
        "files": {},
        "limits": LIMITS,
        "capabilities": CAPABILITIES,
        "cost": CostTable(context_tokens=1, seconds_by_tokens={1: 0.01}),
        "built_with": {},
    }
    return Manifest(**{**fields, **changes})


class ScriptedModel(StepModel):
    """Answers calls by a function: a result, an error to raise, or None to hang."""

    def __init__(self, answer: Callable[[StepRequest], StepResult | Exception | None]) -> None:
        self._answer = answer
        self.calls: list[StepRequest] = []
        self.stopped: list[str] = []

    def submit(self, request: StepRequest) -> Future[StepResult]:
        self.calls.append(request)
        future: Future[StepResult] = Future()
        answer = self._answer(request)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result(answer)
        return future

    def stop(self, request_id: str) -> None:
        self.stopped.append(request_id)

    def close(self) -> None:
        pass


@dataclass
class TargetScript:
    """What plain decoding says after the prompt, for ever: the script, then dots.

    The end token is passed over where min_tokens makes it impossible; the log-probability of the token at position i
    of the answer is -i.

    Attributes:
        tokens: the script; an end token in it ends the answer.
        prompt_tokens: length of the prompt.
        verifies: drafts looked at per call at most; with 0 the call goes on as plain decoding, as engines do.
    """

    tokens: Sequence[int]
    prompt_tokens: int
    verifies: int = 64

    def at(self, position: int) -> int:
        return self.tokens[position] if position < len(self.tokens) else ord(".")

    def __call__(self, request: StepRequest) -> StepResult:
        start = len(request.input_ids) - self.prompt_tokens
        expected = (INSTEAD if self.at(i) == request.end_id else self.at(i) for i in range(start))
        assert request.input_ids[self.prompt_tokens :] == tuple(expected), "history"
        assert len(request.input_ids) + request.max_new_tokens <= LIMITS.max_seq_len, "context"
        assert not request.draft_ids or request.max_new_tokens == len(request.draft_ids) + 1
        used = request.draft_ids[: self.verifies]
        output: list[int] = []
        for i in range(len(used) + 1 if used else request.max_new_tokens):
            token = self.at(start + i)
            if token == request.end_id and i < request.min_tokens:
                token = INSTEAD
            if token == request.end_id:
                break
            output.append(token)
            if used and (i == len(used) or used[i] != token):
                break
        log_probs = tuple(-float(start + i) for i in range(len(output))) if request.return_log_probs else ()
        return StepResult(tuple(output), len(used), kv=KvUse(computed_tokens=len(used) + 1), log_probs=log_probs)


@dataclass
class ScriptedDrafter(Drafter):
    """Proposes the script for some tokens, then what is wrong.

    Attributes:
        script: of the target.
        right: by round, how many of the proposed tokens are right.
        max_k: of its offers, beside the loop's own limit.
        error: raised by `propose` in the rounds that `fails` names.
    """

    script: TargetScript
    right: Callable[[int], int] = lambda index: 64
    max_k: int = 64
    error: Exception | None = None
    fails: Callable[[int], bool] = lambda index: True
    proposed: list[tuple[int, int]] = field(default_factory=list)  # (round, k)
    limits: list[int] = field(default_factory=list)

    def start(self, context: DraftContext) -> DraftSession:
        return _ScriptedSession(self)


class _ScriptedSession(DraftSession):
    def __init__(self, drafter: ScriptedDrafter) -> None:
        self._drafter = drafter
        self._committed = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._committed += len(tokens)

    def offers(self, limit: int) -> tuple[Offer, ...]:
        self._drafter.limits.append(limit)
        most = min(limit, self._drafter.max_k)
        return (Offer("model", "model", most),) if most > 0 else ()

    def propose(self, offer: Offer, k: int, round_index: int) -> Draft:
        drafter = self._drafter
        assert 1 <= k <= offer.max_k
        drafter.proposed.append((round_index, k))
        if drafter.error is not None and drafter.fails(round_index):
            raise drafter.error
        right = drafter.right(round_index)
        ids = (drafter.script.at(self._committed + i) if i < right else WRONG for i in range(k))
        return Draft("model", tuple(ids))


@dataclass
class Rig:
    """An orchestrator with its scripted parts."""

    orchestrator: Orchestrator
    target: ScriptedModel
    drafter: Drafter

    @property
    def verified(self) -> list[int]:
        """Drafts sent to the target in each round."""
        return [len(call.draft_ids) for call in self.target.calls]


PROMPT = "> "


def make_rig(
    script: str | Sequence[int] = "",
    k: int = 4,
    drafter: Drafter | None = None,
    controllers: ControllerFactory | None = None,
    limits: Limits = LIMITS,
    target_s: float = 5.0,
    answer: Callable[[StepRequest], StepResult | Exception | None] | None = None,
    capabilities: Capabilities = CAPABILITIES,
    verifies: int = 64,
    trace: TraceWriter | None = None,
    switch: SpeculationSwitch | None = None,
    draft_ahead: bool = False,
    **drafting: Any,
) -> Rig:
    """Join scripted parts; `drafting` goes to the ScriptedDrafter."""
    tokens = list(script.encode()) if isinstance(script, str) else list(script)
    follows = TargetScript(tokens, len(PROMPT), verifies)
    drafter = drafter or ScriptedDrafter(follows, **drafting)
    target = ScriptedModel(answer or follows)
    orchestrator = Orchestrator(
        tokenizer=cast(Tokenizer, ByteTokenizer()),
        target=TargetFacts(limits, capabilities, END, END + 1),
        verifier=StepVerifier(target, target_s),
        drafter=drafter,
        controllers=controllers or FixedFactory(k, 8),
        admission=Admission(limits.kv_blocks, limits.tokens_per_block, limits.max_requests),
        trace=trace,
        switch=switch,
        draft_ahead=draft_ahead,
    )
    return Rig(orchestrator, target, drafter)


def ask(**changes: Any) -> GenerationRequest:
    """A streaming request for 20 tokens."""
    fields: dict[str, Any] = {"text_input": PROMPT, "max_tokens": 20, "stream": True, "return_perf_metrics": True}
    return GenerationRequest(**{**fields, **changes})


@dataclass(frozen=True)
class Outcome:
    """Chunks of one request, joined."""

    chunks: list[Chunk]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def token_ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def reason(self) -> str | None:
        return self.chunks[-1].finish_reason

    @property
    def statistics(self) -> RequestStatistics:
        statistics = self.chunks[-1].statistics
        assert statistics is not None
        return statistics


def run(rig: Rig, request: GenerationRequest | None = None, is_cancelled: Callable[[], bool] | None = None) -> Outcome:
    """Answer a request and check what holds for every answer."""
    request = request or ask()
    outcome = Outcome(list(rig.orchestrator.generate(request, is_cancelled or (lambda: False))))
    assert [chunk.final for chunk in outcome.chunks] == [False] * (len(outcome.chunks) - 1) + [True]
    assert all(chunk.statistics is None for chunk in outcome.chunks[:-1])
    assert rig.orchestrator.admission.running == rig.orchestrator.admission.waiting == 0
    check_sums(outcome, request)
    return outcome


def check_sums(outcome: Outcome, request: GenerationRequest) -> None:
    """What the statistics say is what was sent."""
    statistics = outcome.statistics
    assert statistics.committed_tokens == len(outcome.token_ids) <= request.max_tokens
    assert statistics.finish_reason == outcome.reason
    histogram, lengths = statistics.acceptance_histogram, statistics.histogram_by_draft_length
    assert sum(histogram) == statistics.spec_rounds
    assert sum(i * n for i, n in enumerate(histogram)) == statistics.num_accepted_draft_tokens
    assert sum(lengths.values()) == statistics.rounds == sum(statistics.decisions.values())
    assert sum(k * n for k, n in lengths.items()) == statistics.num_draft_tokens
    assert sum(statistics.plain_decisions.values()) == statistics.rounds - statistics.spec_rounds
    assert sum(statistics.rounds_by_source.values()) == statistics.rounds
    assert len(histogram) == max(lengths, default=0) + 1
    if request.stream and request.return_perf_metrics and outcome.reason not in ("cancelled", "timeout"):
        records = [chunk.round for chunk in outcome.chunks if chunk.round is not None]
        assert [record.index for record in records] == list(range(statistics.rounds))
        assert [record.committed for record in records] == [len(chunk.token_ids) for chunk in outcome.chunks]
        assert ["".join(record.text) for record in records] == [chunk.text for chunk in outcome.chunks]
        speculative = [record for record in records if record.drafted]
        assert sum(record.accepted for record in records) == statistics.num_accepted_draft_tokens
        if speculative:
            committed = sum(record.committed for record in speculative)
            assert statistics.mean_acceptance_length == committed / len(speculative)
            assert committed <= statistics.num_accepted_draft_tokens + len(speculative)


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for another thread to get there."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)
