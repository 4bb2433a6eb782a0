"""A request on its way in: validated against tokenizer and target, then the state that its rounds share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.engine.manifest import Capabilities, Limits
from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.answer import Answer
from pipeline.orchestrator.controllers.base import ControllerFactory, KController
from pipeline.orchestrator.controllers.fixed import FixedController
from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.orchestrator.statistics import RoundRecord, StatisticsCollector
from pipeline.sampling.random import fresh_seed
from pipeline.sampling.rules import resolve_rule
from pipeline.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TargetFacts:
    """What the loop knows of the target, from its manifest."""

    limits: Limits
    capabilities: Capabilities
    end_id: int | None


@dataclass
class Run:
    """State of one request that its rounds share.

    Attributes:
        request: what the client asked for.
        prompt_ids: the prompt, its chat template applied.
        seed, rule, end_id: resolved: the request's own, or the deployment's.
        controller: chooses K for this request.
        speculates: false where the request asked for plain decoding.
        answer: commits tokens.
        statistics: of the rounds so far.
        kv_tokens: what admission reserves: prompt + max_tokens + K + 1.
        started: `perf_counter` at arrival.
        first_token_s: seconds to the first committed token.
        warm_sources: draft sources that have taken in the prompt.
    """

    request: GenerationRequest
    prompt_ids: tuple[int, ...]
    seed: int
    rule: str
    end_id: int | None
    controller: KController
    speculates: bool
    answer: Answer
    statistics: StatisticsCollector
    kv_tokens: int
    started: float
    first_token_s: float = 0.0
    warm_sources: set[str] = field(default_factory=set)
    _texts: list[str] = field(default_factory=list)
    _ids: list[int] = field(default_factory=list)

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


class Intake:
    """Turns requests into runs; touches no engine.

    Args:
        tokenizer: of target and draft.
        target: limits and capabilities.
        controllers: choose K where the request does not.
        default_rule: for requests that say "auto".
        burst: plain tokens per target call at most.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        target: TargetFacts,
        controllers: ControllerFactory,
        default_rule: str,
        burst: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._target = target
        self._controllers = controllers
        self._default_rule = default_rule
        self._burst = burst

    def prepare(self, request: GenerationRequest, started: float) -> Run:
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
        return Run(
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
