"""The loop: draft, verify, roll back, commit, stream. Plain Python; knows no engine and no server."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.drafting.base import Draft, DraftContext, Drafter, DraftSession, Offer
from pipeline.engine.manifest import Capabilities, Limits
from pipeline.errors import CancelledError, InvalidRequestError, SpecDecodeError
from pipeline.orchestrator.admission import Admission
from pipeline.orchestrator.answer import CANCELLED, Answer, Committed
from pipeline.orchestrator.controllers.base import ControllerFactory, Decision, KController, Observation, RoundTimes
from pipeline.orchestrator.controllers.fixed import FixedController
from pipeline.orchestrator.draft_health import DraftHealth
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.orchestrator.statistics import RoundRecord, StatisticsCollector
from pipeline.orchestrator.verifier import TargetContext, Verdict, Verifier
from pipeline.sampling.random import fresh_seed
from pipeline.sampling.rules import resolve_rule
from pipeline.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TargetFacts:
    """What the loop knows of the target, from its manifest."""

    limits: Limits
    capabilities: Capabilities
    end_id: int | None


class Orchestrator:
    """Runs requests; each in the thread that iterates over it.

    Args:
        tokenizer: of target and draft.
        target: limits and capabilities.
        verifier: the target.
        drafter: the draft.
        controllers: choose K.
        admission: who may run.
        default_rule: the deployment's acceptance rule, for requests that say "auto".
        burst: plain tokens per target call at most.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        target: TargetFacts,
        verifier: Verifier,
        drafter: Drafter,
        controllers: ControllerFactory,
        admission: Admission,
        default_rule: str = "auto",
        burst: int = 8,
    ) -> None:
        self._tokenizer = tokenizer
        self._target = target
        self._verifier = verifier
        self._drafter = drafter
        self._controllers = controllers
        self._default_rule = default_rule
        self._burst = burst
        self.admission = admission
        self.draft_health = DraftHealth()

    def generate(self, request: GenerationRequest, is_cancelled: Callable[[], bool] = lambda: False) -> Iterator[Chunk]:
        """Answer a request.

        Args:
            request: what to do.
            is_cancelled: looked at every round.

        Yields:
            A chunk per round where the request streams, else one; the last has `finish_reason` and `statistics`.

        Raises:
            InvalidRequestError: before any work is done.
            StepError: the target failed; the request is lost.
        """
        started = time.perf_counter()
        run = self._prepare(request, started)
        try:
            with self.admission.admit(run.kv_tokens, is_cancelled) as arrival:
                yield from self._rounds(run, arrival, is_cancelled)
        except CancelledError:
            yield run.last_chunk(CANCELLED, "")

    def _rounds(self, run: _Run, arrival: int, is_cancelled: Callable[[], bool]) -> Iterator[Chunk]:
        request, answer = run.request, run.answer
        unique = uuid.uuid4().hex
        target = TargetContext(unique, request.sampling, run.seed, run.end_id, run.rule, arrival)
        session = self._drafter.start(DraftContext(unique, run.prompt_ids, request.sampling, run.seed, arrival))
        history = list(run.prompt_ids)
        reason: str | None = None
        index = 0
        clock = time.perf_counter()
        while reason is None:
            if is_cancelled():
                raise CancelledError("the request was cancelled")
            # Round 0 is plain: speculation must not cost time to first token.
            decision = Decision.plain(1, "first_token") if index == 0 else self._decide(run, session)
            draft, draft_s = self._draft(run, session, decision, index)
            verdict, draft, verify_s = self._verify(run, target, tuple(history), draft, decision, index)
            committed = answer.commit(verdict.tokens, verdict.accepted, verdict.ended)
            history.extend(committed.token_ids)
            session.extend(committed.token_ids)
            reason = committed.finish_reason
            now = time.perf_counter()
            times = RoundTimes(draft_s, verify_s, now - clock - draft_s - verify_s)
            clock = now
            record = self._account(run, index, decision, draft, verdict, committed, times)
            index += 1
            text = committed.accepted_text + committed.other_text
            if reason is not None:
                yield run.last_chunk(reason, text, committed.token_ids, record)
            elif request.stream:
                yield Chunk(text, committed.token_ids, record if request.return_perf_metrics else None)
            else:
                run.keep(text, committed.token_ids)

    def _decide(self, run: _Run, session: DraftSession) -> Decision:
        offers: Sequence[Offer] = ()
        # A verify commits up to K + 1 tokens, and all of them must be wanted.
        limit = min(run.answer.remaining - 1, self._target.limits.max_draft_len)
        if limit > 0 and run.speculates:
            offers = session.offers(limit)
            if not self.draft_health.usable and any(offer.source == "model" for offer in offers):
                offers = [offer for offer in offers if offer.source != "model"]
                run.lost_draft()
        return run.controller.choose(offers, run.answer.remaining, self.admission.running)

    def _draft(self, run: _Run, session: DraftSession, decision: Decision, index: int) -> tuple[Draft | None, float]:
        if decision.offer is None:
            return None, 0.0
        started = time.perf_counter()
        try:
            draft = session.propose(decision.offer, decision.k, index)
        except SpecDecodeError:
            self._draft_failed(run)
            return None, time.perf_counter() - started
        if decision.offer.source == "model":
            self.draft_health.worked()
        return draft, time.perf_counter() - started

    def _draft_failed(self, run: _Run) -> None:
        """The request goes on without its draft: slower, never wrong."""
        self.draft_health.failed()
        run.statistics.draft_failures += 1
        run.lost_draft()

    def _verify(
        self,
        run: _Run,
        target: TargetContext,
        history: tuple[int, ...],
        draft: Draft | None,
        decision: Decision,
        index: int,
    ) -> tuple[Verdict, Draft | None, float]:
        started = time.perf_counter()
        if draft is not None:
            try:
                return self._verifier.verify(target, history, draft, index), draft, time.perf_counter() - started
            except InvalidRequestError:
                # Round 0 took everything else of this call: it is the draft that the target refuses.
                self._draft_failed(run)
        verdict = self._verifier.decode(target, history, max(decision.burst, 1), index)
        return verdict, None, time.perf_counter() - started

    def _account(
        self,
        run: _Run,
        index: int,
        decision: Decision,
        draft: Draft | None,
        verdict: Verdict,
        committed: Committed,
        times: RoundTimes,
    ) -> RoundRecord:
        failed = decision.offer is not None and draft is None
        record = RoundRecord(
            index=index,
            source=draft.source if draft is not None else "none",
            reason="draft_failed" if failed else decision.reason,
            drafted=verdict.drafted,
            accepted=committed.accepted,
            committed=len(committed.token_ids),
            text=(committed.accepted_text, committed.other_text),
            draft_s=times.draft_s,
            verify_s=times.verify_s,
            overhead_s=times.overhead_s,
        )
        run.statistics.add(record)
        run.statistics.target_reused_tokens += verdict.kv.reused_tokens
        run.statistics.target_computed_tokens += verdict.kv.computed_tokens
        if index == 0:
            run.first_token_s = time.perf_counter() - run.started
        # A first pass takes in the whole prompt and says nothing about the cost of a round.
        first_use = draft is not None and draft.source not in run.warm_sources
        if draft is not None:
            run.warm_sources.add(draft.source)
        prefilled = index == 0 or (first_use and record.source == "model")
        if not failed and not prefilled:
            key = decision.offer.key if decision.offer is not None and draft is not None else None
            load = self.admission.running
            run.controller.observe(
                Observation(key, verdict.drafted, verdict.accepted, len(verdict.tokens), load, times)
            )
        return record

    def _prepare(self, request: GenerationRequest, started: float) -> _Run:
        """Validate what needs the tokenizer and the target's limits; no engine is touched."""
        limits = self._target.limits
        if request.chat:
            # A chat template writes its own special tokens.
            text = self._tokenizer.apply_chat_template(request.text_input)
            prompt_ids = tuple(self._tokenizer.encode(text, add_special_tokens=False))
        else:
            prompt_ids = tuple(self._tokenizer.encode(request.text_input))
        if not prompt_ids:
            raise InvalidRequestError("text_input", request.text_input[:32], "holds no token")
        if len(prompt_ids) >= limits.max_seq_len:
            raise InvalidRequestError(
                "text_input", f"{len(prompt_ids)} tokens", f"must be shorter than max_seq_len = {limits.max_seq_len}"
            )
        if len(prompt_ids) + request.max_tokens > limits.max_seq_len:
            raise InvalidRequestError(
                "max_tokens",
                request.max_tokens,
                f"prompt ({len(prompt_ids)} tokens) + max_tokens must not exceed max_seq_len = {limits.max_seq_len}",
            )
        k = request.num_draft_tokens
        if k is not None and k > limits.max_draft_len:
            raise InvalidRequestError(
                "num_draft_tokens", k, f"the target verifies at most {limits.max_draft_len} draft tokens"
            )
        asked = request.acceptance_rule
        rule = resolve_rule(self._default_rule if asked == "auto" else asked, self._target.capabilities.rules)
        fixed = None if k is None else FixedController(k, self._burst, "request")
        seed = fresh_seed() if request.seed is None else request.seed
        capable = self._target.capabilities
        reproducible = capable.deterministic and (
            request.sampling.greedy or (k is not None and not capable.drops_drafts)
        )
        return _Run(
            request=request,
            prompt_ids=prompt_ids,
            seed=seed,
            rule=rule,
            end_id=self._target.end_id if request.end_id is None else request.end_id,
            controller=fixed or self._controllers.start(),
            speculates=k != 0,
            answer=Answer(self._tokenizer, request.max_tokens, request.stop_words),
            statistics=StatisticsCollector(len(prompt_ids), rule, seed, reproducible),
            kv_tokens=len(prompt_ids) + request.max_tokens + limits.max_draft_len + 1,
            started=started,
        )


class _Run:
    """State of one request that the rounds share."""

    def __init__(
        self,
        request: GenerationRequest,
        prompt_ids: tuple[int, ...],
        seed: int,
        rule: str,
        end_id: int | None,
        controller: KController,
        speculates: bool,
        answer: Answer,
        statistics: StatisticsCollector,
        kv_tokens: int,
        started: float,
    ) -> None:
        self.request = request
        self.prompt_ids = prompt_ids
        self.seed = seed
        self.rule = rule
        self.end_id = end_id
        self.controller = controller
        self.speculates = speculates
        self.answer = answer
        self.statistics = statistics
        self.kv_tokens = kv_tokens
        self.started = started
        self.first_token_s = 0.0
        self.warm_sources: set[str] = set()
        self._texts: list[str] = []
        self._ids: list[int] = []

    def lost_draft(self) -> None:
        """A round goes without the draft it would have had: when, no seed can tell."""
        if not self.request.sampling.greedy:
            self.statistics.reproducible = False

    def keep(self, text: str, token_ids: Sequence[int]) -> None:
        """Hold back what a request that does not stream gets at its end."""
        self._texts.append(text)
        self._ids.extend(token_ids)

    def last_chunk(
        self, reason: str, text: str, token_ids: Sequence[int] = (), record: RoundRecord | None = None
    ) -> Chunk:
        request = self.request
        self.keep(text, token_ids)
        whole = "".join(self._texts)
        if not request.stream and not request.exclude_input_in_output:
            whole = request.text_input + whole
        total = time.perf_counter() - self.started
        return Chunk(
            text=whole,
            token_ids=tuple(self._ids),
            round=record if request.return_perf_metrics and request.stream else None,
            finish_reason=reason,
            statistics=self.statistics.finish(reason, self.first_token_s, total),
        )
