"""The state that the rounds of one answer share, and the chunks it is sent in."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.drafting.base import Offer
from pipeline.orchestrator.answer import Answer, Committed
from pipeline.orchestrator.controllers.base import KController
from pipeline.orchestrator.request import EACH_TOKEN, Chunk, GenerationRequest
from pipeline.orchestrator.statistics import RoundRecord, StatisticsCollector
from pipeline.sampling.params import SamplingParams
from pipeline.sampling.rules import CoupledRule

NOTHING = Committed((), 0, ())


@dataclass
class Run:
    """State of one answer.

    Attributes:
        request: what the client asked for.
        sequence: which of the request's answers this is.
        prompt_ids: the prompt, its chat template applied.
        sampling: the request's options, its words as token ids.
        seed, rule, end_id: resolved: the request's own, or the deployment's.
        controller: chooses K for this answer.
        speculates: false where the request asked for plain decoding.
        answer: commits tokens.
        statistics: of the rounds so far.
        kv_tokens: what admission reserves: prompt + max_tokens + K + 1.
        started: `perf_counter` when the answer's turn came.
        waited_s: seconds that the request had waited by then; 0 for its further answers.
        first_token_s: seconds to the first committed token.
        warm_sources: draft sources that have taken in the prompt.
        offers: of the latest decision.
        unique: names this answer in this process, whatever the client calls it.
    """

    request: GenerationRequest
    sequence: int
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    rule: str
    end_id: int | None
    controller: KController
    speculates: bool
    answer: Answer
    statistics: StatisticsCollector
    kv_tokens: int
    started: float
    waited_s: float
    first_token_s: float = 0.0
    warm_sources: set[str] = field(default_factory=set)
    offers: Sequence[Offer] = ()
    unique: str = field(default_factory=lambda: uuid.uuid4().hex)
    _unsent: list[Committed] = field(default_factory=list)
    _cum_log_prob: float = 0.0

    def lost_draft(self) -> None:
        """A round goes without the draft it would have had: when, no seed can tell."""
        if not self.sampling.greedy and self.rule != CoupledRule.name:
            self.statistics.reproducible = False

    def chunks(self, committed: Committed, record: RoundRecord) -> Iterator[Chunk]:
        """What a round sends: one chunk or one per token where the request streams, else all at the end."""
        request = self.request
        if not request.stream:
            self._unsent.append(committed)
        elif request.stream_tokens == EACH_TOKEN and len(committed.token_ids) > 1:
            for i in range(len(committed.token_ids) - 1):
                yield self._chunk(committed.texts[i], committed.token_ids[i : i + 1], committed.log_probs[i : i + 1])
            last = len(committed.token_ids) - 1
            committed = Committed(
                committed.token_ids[last:],
                0,
                committed.texts[last:],
                committed.tail,
                committed.finish_reason,
                committed.log_probs[last:],
            )
        if committed.finish_reason is not None:
            yield self.last_chunk(committed.finish_reason, committed, record)
        elif request.stream:
            yield self._chunk(committed.text, committed.token_ids, committed.log_probs, record)

    def last_chunk(self, reason: str, committed: Committed = NOTHING, record: RoundRecord | None = None) -> Chunk:
        """The chunk that ends the answer: with everything, where the request does not stream."""
        request = self.request
        parts = [committed] if request.stream else self._unsent
        text = "".join(part.text for part in parts)
        if not request.stream and not request.exclude_input_in_output:
            text = request.text_input + text
        return self._chunk(
            text,
            tuple(token for part in parts for token in part.token_ids),
            tuple(value for part in parts for value in part.log_probs),
            record if request.stream else None,
            reason,
        )

    def _chunk(
        self,
        text: str,
        token_ids: tuple[int, ...],
        log_probs: tuple[float, ...],
        record: RoundRecord | None = None,
        reason: str | None = None,
    ) -> Chunk:
        request = self.request
        self._cum_log_prob += sum(log_probs)
        statistics = None
        if reason is not None:
            statistics = self.statistics.finish(reason, self.first_token_s, time.perf_counter() - self.started)
        return Chunk(
            text=text,
            token_ids=token_ids,
            round=record if request.return_perf_metrics else None,
            finish_reason=reason,
            statistics=statistics,
            log_probs=log_probs,
            cum_log_prob=self._cum_log_prob if request.return_log_probs else None,
            sequence_index=self.sequence,
        )
