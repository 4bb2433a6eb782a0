"""One packed batch per pass, and what its logits decide for each call."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.call import Call
from pipeline.engine.decoder import Decoder
from pipeline.engine.pass_plan import plan_pass
from pipeline.engine.roster import Roster
from pipeline.engine.run_ahead import RunAhead, RunAheads
from pipeline.errors import StepError
from pipeline.kv_cache.cache import KvCache
from pipeline.sampling.head import Head
from pipeline.sampling.laws import ZERO_LOG, log_laws, log_probs
from pipeline.sampling.laws import laws as make_laws
from pipeline.sampling.row_team import RowTeam
from pipeline.sampling.verify import IMPOSSIBLE, Decision, follow, sample_with_law

MAX_BATCH_TOKENS = 512
NOT_FINITE = "the engine computed logits that are not finite"


class Scheduler:
    """Owns the running calls of one engine. Used by one thread.

    Args:
        decoder: computes.
        kv: the decoder's KV cache.
        max_calls: calls running at once.
        max_batch_tokens: tokens of one pass; longer prefills are cut into chunks.
    """

    def __init__(self, decoder: Decoder, kv: KvCache, max_calls: int, max_batch_tokens: int = MAX_BATCH_TOKENS) -> None:
        self._decoder = decoder
        self._head = None if decoder.head_ids is None else Head.of(decoder.head_ids, decoder.config.vocab_size)
        self._token_ids: list[int] | None = None if self._head is None else self._head.ids.tolist()
        self._kv = kv
        self._ahead = RunAheads(kv)
        self._team = RowTeam(decoder.threads)
        self._max_batch_tokens = max_batch_tokens
        self._roster = Roster(kv, self._ahead, max_calls)

    @property
    def busy(self) -> bool:
        return bool(self._roster or self._ahead.pending)

    @property
    def expects_callers(self) -> bool:
        """Whether rows wait for calls that go on from them."""
        return bool(self._ahead)

    def forget_callers(self) -> None:
        """They have not come: give back what was kept for them."""
        self._ahead.drop_all()

    def add(self, call: Call) -> None:
        """Queue a call; its request's priority and arrival decide who goes first."""
        self._roster.add(call)

    def step(self) -> None:
        """Admit what fits, compute one pass, and finish the calls that ended."""
        self._roster.grow()
        for call, ahead_of_it in self._roster.admit():
            if ahead_of_it is None:
                continue
            try:
                self._continue(call, ahead_of_it)
            except Exception as error:  # the other calls go on
                if not call.future.done():
                    self._fail(call, StepError(f"engine pass failed: {type(error).__name__}: {error}"))
        planned = plan_pass(self._roster.running, self._max_batch_tokens)
        if not planned and not self._ahead.pending:
            return
        ahead = self._ahead.pending
        calls = [call for call, _ in planned]
        rows = (*(row for _, row in planned), *(row.row() for row in ahead))
        started = time.perf_counter()
        try:
            logits = self._decoder.forward(PackedBatch(rows))
            self._take_ahead(ahead, logits)
            self._advance(calls, rows[: len(calls)], logits, started)
        except Exception as error:
            # One pass serves many calls: each must learn of its end, and none may keep blocks.
            for call in calls:
                if not call.future.done():
                    self._fail(call, StepError(f"engine pass failed: {type(error).__name__}: {error}"))
            self._ahead.drop_all()

    def close(self) -> None:
        """Release threads."""
        self._team.close()
        self._decoder.close()

    def fail_all(self, error: Exception) -> None:
        """End every call with `error`."""
        self._ahead.drop_all()
        for call in [*self._roster.running, *self._roster.waiting]:
            self._fail(call, error)

    def stop(self, request_id: str) -> None:
        """End a call at once, with what it has: its pages are indexed before the next call looks for them."""
        for call in [*self._roster.running, *self._roster.waiting]:
            if call.request.request_id == request_id:
                call.stopped = True
                if call.table is None:
                    self._fail(call, StepError(f"call {request_id} was stopped"))
                else:
                    self._finish(call)

    def _continue(self, call: Call, ahead: RunAhead) -> None:
        """Start a call on the pages of a row that ran ahead, from the logits that it has already."""
        table = ahead.table
        table.reused_tokens, table.reused_blocks = table.length, len(table.blocks) - table.new_blocks
        if not ahead.computed:
            return
        ended: list[Call] = []
        if not ahead.finite:
            self._fail(call, StepError(NOT_FINITE))
        elif call.takes_best:
            if self._commit(call, follow((), self._tokens([ahead.place]))):
                ended = [call]
        else:
            assert ahead.logits is not None
            ended = self._decide([call], ahead.logits)
        for call in ended:
            self._finish(call)

    def _take_ahead(self, ahead: Sequence[RunAhead], logits: Tensor) -> None:
        """Keep what the pass, whose last rows they are, has found."""
        best = self._decoder.best()
        first = len(best.places) - len(ahead)
        for i, row in enumerate(ahead, first):
            row.take(best.places[i], best.finite[i], logits[i])
        self._ahead.pass_over()

    def _advance(self, calls: Sequence[Call], rows: Sequence[Row], logits: Tensor, started: float) -> None:
        best = self._decoder.best()
        groups: dict[int, list[tuple[Call, int]]] = {}
        ended = []
        first = 0
        for call, row in zip(calls, rows, strict=True):
            assert call.table is not None
            call.table.length = row.start + len(row.tokens)
            call.computed_tokens += len(row.tokens)
            if not all(best.finite[first : first + row.logits]):
                if call.request.return_logits and call.output:
                    # A draft proposes what came before: whether it goes on may not depend on what that was.
                    ended.append(call)
                else:
                    self._fail(call, StepError(NOT_FINITE))
            elif row.logits and call.takes_best:
                tokens = self._tokens(best.places[first : first + row.logits])
                if self._commit(call, follow(call.pending_drafts, tokens)):
                    ended.append(call)
            elif row.logits:
                groups.setdefault(row.logits, []).append((call, first))
            first += row.logits
        for width, members in groups.items():
            starts = torch.tensor([start for _, start in members])
            index = (starts[:, None] + torch.arange(width)).flatten()
            part = logits if len(index) == logits.shape[0] else logits[index]
            ended += self._decide([call for call, _ in members], part.view(len(members), width, -1))
        elapsed = time.perf_counter() - started
        for call in calls:
            call.compute_s += elapsed
        for call in ended:
            self._finish(call)

    def _decide(self, calls: Sequence[Call], logits: Tensor) -> list[Call]:
        """Choose the next tokens of calls with equally many logits [calls, K + 1, width]; return those that ended."""
        requests = [call.verify_call() for call in calls]
        laws = None
        # Nobody looks at the logits again: they are not kept.
        spent = not any(call.request.return_log_probs or call.request.return_logits for call in calls)
        if logits.shape[1] > 1:
            decisions = self._team.verify(logits, requests, spent)
        elif any(call.request.return_logits for call in calls):
            tokens, laws = sample_with_law(logits[:, 0], requests, self._head)
            decisions = [Decision(0, token) for token in tokens]
        else:
            decisions = [Decision(0, token) for token in self._team.sample(logits[:, 0], requests, self._head, spent)]
        ended: list[Call] = []
        new = [0] * len(calls)
        for i, (call, decision) in enumerate(zip(calls, decisions, strict=True)):
            if decision.token == IMPOSSIBLE:
                self._fail(call, StepError("no token is possible: the options forbid all that the model allows"))
                continue
            call.uniforms_used += requests[i].uniforms
            before = len(call.output)
            if self._commit(call, decision):
                ended.append(call)
            new[i] = len(call.output) - before
            if call.request.return_logits and new[i]:
                if laws is None:
                    whole = make_laws(logits[i : i + 1], [requests[i].sampling], [requests[i].context], self._head)[0]
                else:
                    whole = laws[i : i + 1]
                call.log_laws.append(log_laws(whole[: new[i]]))
        self._add_log_probs(calls, logits, new)
        return ended

    @staticmethod
    def _commit(call: Call, decision: Decision) -> bool:
        """True when the call has ended."""
        drafts = call.pending_drafts
        before = len(call.output)
        ended = call.commit([*drafts[: decision.accepted], decision.token])
        if drafts:
            call.accepted = min(decision.accepted, len(call.output) - before)
        return ended

    def _add_log_probs(self, calls: Sequence[Call], logits: Tensor, new: Sequence[int]) -> None:
        """Log probabilities of the tokens just committed, new[i] of each call that asked."""
        asked = [i for i, call in enumerate(calls) if call.request.return_log_probs and new[i]]
        if not asked:
            return
        rows = torch.tensor([i for i in asked for _ in range(new[i])])
        positions = torch.tensor([position for i in asked for position in range(new[i])])
        tokens = torch.tensor([token for i in asked for token in calls[i].output[-new[i] :]])
        places = tokens if self._head is None else torch.from_numpy(self._head.places)[tokens]
        found = log_probs(logits[rows, positions], places).tolist()
        for i in asked:
            calls[i].log_probs += found[: new[i]]
            del found[: new[i]]

    def _finish(self, call: Call) -> None:
        table = call.table
        assert table is not None
        # The last token that was returned has not been computed; rejected drafts lie beyond and are given back.
        kept = min(len(call.known) - 1, table.length)
        law = self._full_laws(call)
        result = call.result(law)
        self._roster.remove(call)
        if not (call.goes_on and self._ahead.start(call)):
            self._kv.close(table, call.known[:kept])
        call.future.set_result(result)

    def _tokens(self, places: list[int]) -> list[int]:
        """Outputs of the head as token ids."""
        return places if self._token_ids is None else [self._token_ids[place] for place in places]

    def _full_laws(self, call: Call) -> Tensor | None:
        if not call.log_laws:
            return None
        law = torch.cat(call.log_laws)
        if self._head is None:
            return law
        full = law.new_full((law.shape[0], self._decoder.config.vocab_size), ZERO_LOG)
        full[:, self._head.ids] = law
        return full

    def _fail(self, call: Call, error: Exception) -> None:
        self._roster.remove(call)
        if call.table is not None:
            self._kv.close(call.table, [])
            call.table = None
        call.future.set_exception(error)
