"""The loop: draft, verify, roll back, commit, stream. Plain Python; knows no engine and no server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from pipeline.drafting.base import Draft, DraftContext, Drafter, DraftSession, Offer
from pipeline.errors import CancelledError, RequestTimeoutError, SpecDecodeError
from pipeline.orchestrator.admission import Admission
from pipeline.orchestrator.answer import CANCELLED, TIMEOUT, Committed
from pipeline.orchestrator.controllers.base import ControllerFactory, Decision, Observation, RoundTimes
from pipeline.orchestrator.controllers.switched import SWITCH_REASONS
from pipeline.orchestrator.draft_health import DraftHealth
from pipeline.orchestrator.intake import Intake, TargetFacts
from pipeline.orchestrator.lifeline import Lifeline
from pipeline.orchestrator.recorder import LoopState, NoRecorder, Recorder
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.orchestrator.run import Run
from pipeline.orchestrator.statistics import RoundRecord
from pipeline.orchestrator.switch import AUTO, SpeculationSwitch
from pipeline.orchestrator.trace.round import trace_line
from pipeline.orchestrator.trace.writer import TraceWriter
from pipeline.orchestrator.verifier import TargetContext, Verdict, Verifier
from pipeline.queue_spec import QueueSpec
from pipeline.text.tokenizer import Tokenizer


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
        queue: how requests wait.
        trace: is given every round, and closed with the orchestrator.
        switch: turns speculation off for everybody; None: it stays with the controllers.
        draft_ahead: the draft goes on behind every block that it proposed, while the target verifies it.

    Attributes:
        recorder: told of every round; a server puts its own here.
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
        queue: QueueSpec | None = None,
        trace: TraceWriter | None = None,
        switch: SpeculationSwitch | None = None,
        draft_ahead: bool = False,
    ) -> None:
        switch = switch or SpeculationSwitch(AUTO, target.limits.max_draft_len)
        self._intake = Intake(tokenizer, target, controllers, drafter.deterministic, default_rule, burst, switch)
        self._max_draft_len = target.limits.max_draft_len
        self._queue = queue or QueueSpec()
        self._verifier = verifier
        self._drafter = drafter
        self._trace = trace
        self._draft_ahead = draft_ahead
        self.admission = admission
        self.draft_health = DraftHealth()
        self.recorder: Recorder = NoRecorder()

    def close(self) -> None:
        """Write what the trace still waits for. The step models are not the orchestrator's to close."""
        if self._trace is not None:
            self._trace.close()

    def generate(self, request: GenerationRequest, is_cancelled: Callable[[], bool] = lambda: False) -> Iterator[Chunk]:
        """Answer a request.

        Args:
            request: what to do.
            is_cancelled: looked at every round, and while it waits.

        Yields:
            For each of num_return_sequences answers, one after another: a chunk per round (or token) where the request
            streams, else one; the last has `finish_reason` and `statistics`.

        Raises:
            InvalidRequestError: before any work is done.
            OverloadedError: it waited for too long.
            RequestTimeoutError: its own time was up before there was a token; later it ends with what there is.
            StepError: the target failed; the request is lost.
        """
        arrived = time.perf_counter() - request.waited_s
        place = self._queue.place(arrived, request.priority)
        lifeline = Lifeline(is_cancelled, arrived, request.timeout)
        for sequence in range(request.num_return_sequences):
            run = self._intake.prepare(request, sequence)
            # A client that has had an answer already is not told that it waits too long for the next.
            waits = partial(lifeline.check_in_line, self._queue.timeout_s) if sequence == 0 else lifeline.check
            try:
                with self.admission.admit(run.kv_tokens, waits, place) as arrival:
                    target, draft_context = _contexts(run, arrival, lifeline)
                    with closing(self._drafter.start(draft_context)) as session:
                        yield from self._rounds(run, target, session, lifeline)
            except CancelledError:
                yield run.last_chunk(CANCELLED)
            except RequestTimeoutError:
                if sequence == 0 and not run.answer.token_count:
                    raise
                yield run.last_chunk(TIMEOUT)

    def state(self) -> LoopState:
        """How busy it is, from any thread."""
        return LoopState(self.admission.running, self.admission.waiting, self.draft_health.usable)

    def _rounds(self, run: Run, target: TargetContext, session: DraftSession, lifeline: Lifeline) -> Iterator[Chunk]:
        history = list(run.prompt_ids)
        reason: str | None = None
        index = 0
        clock = time.perf_counter()
        while reason is None:
            lifeline.check()
            # Round 0 is plain: speculation must not cost time to first token.
            decision = Decision.plain(1, "first_token") if index == 0 else self._decide(run, session)
            draft, draft_s = self._draft(run, session, decision, index)
            self._look_ahead(run, session, decision, draft, index)
            verdict, verify_s = self._verify(target, tuple(history), draft, decision, index, run.answer.remaining)
            committed = run.answer.commit(verdict.tokens, verdict.accepted, verdict.ended, verdict.log_probs)
            history.extend(committed.token_ids)
            session.extend(committed.token_ids)
            reason = committed.finish_reason
            now = time.perf_counter()
            times = RoundTimes(draft_s, verify_s, now - clock - draft_s - verify_s)
            clock = now
            record = self._account(run, index, decision, draft, verdict, committed, times)
            index += 1
            yield from run.chunks(committed, record)

    def _decide(self, run: Run, session: DraftSession) -> Decision:
        offers: Sequence[Offer] = ()
        why_none = "no_offer"
        # A verify commits up to K + 1 tokens, and all of them must be wanted.
        limit = min(run.answer.remaining - 1, self._max_draft_len)
        if limit > 0 and run.speculates:
            offers = session.offers(limit)
            if not self.draft_health.usable and any(offer.source == "model" for offer in offers):
                offers = [offer for offer in offers if offer.source != "model"]
                run.lost_draft()
                why_none = "draft_resting"
        elif limit <= 0:
            why_none = "last_token"
        run.offers = offers
        decision = run.controller.choose(offers, run.answer.remaining, self.admission.running)
        if decision.reason in SWITCH_REASONS and run.request.num_draft_tokens:
            run.lost_draft()
        return replace(decision, reason=why_none) if decision.reason == "no_offer" else decision

    def _draft(self, run: Run, session: DraftSession, decision: Decision, index: int) -> tuple[Draft | None, float]:
        if decision.offer is None:
            return None, 0.0
        started = time.perf_counter()
        try:
            draft = session.propose(decision.offer, decision.k, index)
        except (CancelledError, RequestTimeoutError):
            raise  # nobody's failure
        except SpecDecodeError:
            self._draft_failed(run)
            return None, time.perf_counter() - started
        if decision.offer.source == "model":
            self.draft_health.worked()
        return draft, time.perf_counter() - started

    def _look_ahead(self, run: Run, session: DraftSession, decision: Decision, draft: Draft | None, index: int) -> None:
        if draft is None or not self._draft_ahead:
            return
        # After all of this block and the bonus a last token is the target's, as in every round.
        left = run.answer.remaining - len(draft.ids) - 2
        # As many as the controller wants: a block that was made ahead itself may hold fewer.
        if left > 0 and session.look_ahead(draft, min(decision.k, left), index + 1):
            run.statistics.drafts_ahead += 1
            self.recorder.drafted_ahead()

    def _draft_failed(self, run: Run) -> None:
        """The request goes on without its draft: slower, never wrong."""
        self.draft_health.failed()
        self.recorder.draft_failed()
        run.statistics.draft_failures += 1
        run.lost_draft()

    def _verify(
        self,
        target: TargetContext,
        history: tuple[int, ...],
        draft: Draft | None,
        decision: Decision,
        index: int,
        remaining: int,
    ) -> tuple[Verdict, float]:
        started = time.perf_counter()
        if draft is None:
            burst = max(decision.burst, 1)
            verdict = self._verifier.decode(target, history, burst, index, decision.goes_on and burst < remaining)
        else:
            # A draft that the target refuses fails the request: decoding plainly instead would withhold a proposal
            # because of what it is, and the text would no longer follow p.
            verdict = self._verifier.verify(target, history, draft, index)
        return verdict, time.perf_counter() - started

    def _account(
        self,
        run: Run,
        index: int,
        decision: Decision,
        draft: Draft | None,
        verdict: Verdict,
        committed: Committed,
        times: RoundTimes,
    ) -> RoundRecord:
        failed = decision.offer is not None and draft is None
        reason = "draft_failed" if failed else decision.reason
        if draft is not None and not verdict.drafted:
            reason = "drafts_dropped"  # the target had no room for any
        record = RoundRecord(
            index=index,
            source=draft.source if draft is not None else "none",
            reason=reason,
            drafted=verdict.drafted,
            accepted=committed.accepted,
            committed=len(committed.token_ids),
            text=(committed.accepted_text, committed.other_text),
            draft_s=times.draft_s,
            verify_s=times.verify_s,
            overhead_s=times.overhead_s,
            ahead=draft is not None and draft.ahead,
        )
        run.statistics.add(record)
        self.recorder.round_ended(record)
        if run.request.on_round is not None:
            run.request.on_round(run.sequence, record)
        run.statistics.target_reused_tokens += verdict.kv.reused_tokens
        run.statistics.target_computed_tokens += verdict.kv.computed_tokens
        if index == 0:
            run.first_token_s = time.perf_counter() - run.started
            self.recorder.first_token(run.waited_s + run.first_token_s)
        # A first pass takes in the whole prompt and says nothing about the cost of a round.
        first_use = draft is not None and draft.source not in run.warm_sources
        if draft is not None:
            run.warm_sources.add(draft.source)
        prefilled = index == 0 or (first_use and record.source == "model")
        # Where all drafts were dropped the call was plain decoding, at the price of a draft: not the cost of a round.
        dropped = draft is not None and verdict.drafted == 0
        observed = not failed and not prefilled and not dropped
        key = decision.offer.key if decision.offer is not None and draft is not None else None
        load, computed = self.admission.running, len(verdict.tokens)
        seen = Observation(key, verdict.drafted, verdict.accepted, computed, load, times, record.ahead)
        if observed:
            run.controller.observe(seen)
        if self._trace is not None:
            self._trace.put(trace_line(run, record, decision, draft, seen, observed))
        return record


def _contexts(run: Run, arrival: int, lifeline: Lifeline) -> tuple[TargetContext, DraftContext]:
    """What every call of an answer carries; of end_id and min_tokens the draft learns nothing."""
    target = TargetContext(
        request_id=run.unique,
        prompt_tokens=len(run.prompt_ids),
        sampling=run.sampling,
        seed=run.seed,
        end_id=run.end_id,
        rule=run.rule,
        arrival=arrival,
        min_tokens=run.request.min_tokens,
        return_log_probs=run.request.return_log_probs,
        check=lifeline.check,
    )
    return target, DraftContext(
        run.unique, run.prompt_ids, run.sampling, run.seed, run.rule, arrival, check=lifeline.check
    )
