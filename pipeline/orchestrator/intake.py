"""A request on its way in: validated against tokenizer and target, its words and names resolved."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace

from pipeline.engine.manifest import Capabilities, Limits
from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.answer import Answer
from pipeline.orchestrator.controllers.base import ControllerFactory
from pipeline.orchestrator.controllers.fixed import FixedController
from pipeline.orchestrator.controllers.switched import SwitchedController
from pipeline.orchestrator.request import GenerationRequest
from pipeline.orchestrator.run import Run
from pipeline.orchestrator.statistics import StatisticsCollector
from pipeline.orchestrator.switch import SpeculationSwitch
from pipeline.sampling.params import OPTIONS, SamplingParams
from pipeline.sampling.random import fresh_seed
from pipeline.sampling.rules import RULE_AUTO, CoupledRule, resolve_rule
from pipeline.text.tokenizer import Tokenizer
from pipeline.text.words import bad_word_ids, bias_by_id

NO_END_ID = -1
MAX_BYTES_PER_TOKEN = 64
"""Of a prompt, on average: beyond it a text is refused unread. Ten million characters cost a tokenizer 12 seconds."""
OFF = SamplingParams()


@dataclass(frozen=True)
class TargetFacts:
    """What the loop knows of the target, from its manifest.

    Attributes:
        limits, capabilities: as in the manifest.
        end_id: the token that ends an answer.
        vocab_size: width of its logits.
    """

    limits: Limits
    capabilities: Capabilities
    end_id: int | None
    vocab_size: int


class Intake:
    """Turns requests into runs; touches no engine.

    Args:
        tokenizer: of target and draft.
        target: limits and capabilities.
        controllers: choose K where the request does not.
        deterministic_drafts: equal calls of the draft give equal drafts.
        default_rule: for requests that say "auto".
        burst: plain tokens per target call at most.
        switch: of the deployment, above what controllers and requests say.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        target: TargetFacts,
        controllers: ControllerFactory,
        deterministic_drafts: bool,
        default_rule: str,
        burst: int,
        switch: SpeculationSwitch,
    ) -> None:
        self._tokenizer = tokenizer
        self._target = target
        self._controllers = controllers
        self._deterministic_drafts = deterministic_drafts
        self._default_rule = default_rule
        self._burst = burst
        self._switch = switch

    def prepare(self, request: GenerationRequest, sequence: int = 0) -> Run:
        """The run of answer number `sequence` of a request.

        Raises:
            InvalidRequestError: naming what does not fit, and the limit.
        """
        started = time.perf_counter()
        limits, capable = self._target.limits, self._target.capabilities
        prompt_ids = self._prompt(request)
        k = request.num_draft_tokens
        if k is not None and k > limits.max_draft_len:
            raise InvalidRequestError(
                "num_draft_tokens", k, f"the target verifies at most {limits.max_draft_len} draft tokens"
            )
        if request.return_log_probs and not capable.log_probs:
            raise InvalidRequestError("return_log_probs", True, "the target's engine gives no log-probabilities")
        asked = self._default_rule if request.acceptance_rule == RULE_AUTO else request.acceptance_rule
        rule = resolve_rule(asked, capable.rules, request.seed is not None)
        seed = fresh_seed() if request.seed is None else sequence_seed(request.seed, sequence)
        return Run(
            request=request,
            sequence=sequence,
            prompt_ids=prompt_ids,
            sampling=self._sampling(request),
            seed=seed,
            rule=rule,
            end_id=self._end_id(request),
            controller=SwitchedController(
                self._controllers.start() if k is None else FixedController(k, self._burst, "request"),
                self._switch,
                k,
                self._burst,
            ),
            speculates=k != 0,
            answer=Answer(self._tokenizer, request.max_tokens, request.stop_words),
            statistics=StatisticsCollector(len(prompt_ids), rule, seed, self._reproducible(request, rule)),
            kv_tokens=len(prompt_ids) + request.max_tokens + limits.max_draft_len + 1,
            started=started,
            waited_s=request.waited_s if sequence == 0 else 0.0,
        )

    def _prompt(self, request: GenerationRequest) -> tuple[int, ...]:
        limit = self._target.limits.max_seq_len
        most, size = MAX_BYTES_PER_TOKEN * limit, len(request.text_input.encode(errors="replace"))
        if size > most:
            raise InvalidRequestError(
                "text_input", f"{size} bytes", f"at most {most}: {MAX_BYTES_PER_TOKEN} x max_seq_len = {limit}"
            )
        if request.chat:
            prompt = self._tokenizer.apply_chat_template(request.text_input)
            ids = tuple(self._tokenizer.encode(prompt, add_special_tokens=False))
        else:
            ids = tuple(self._tokenizer.encode(request.text_input))
        if not ids:
            raise InvalidRequestError("text_input", request.text_input[:32], "holds no token")
        if len(ids) >= limit:
            raise InvalidRequestError("text_input", f"{len(ids)} tokens", f"must be shorter than max_seq_len = {limit}")
        if len(ids) + request.max_tokens > limit:
            raise InvalidRequestError(
                "max_tokens",
                request.max_tokens,
                f"prompt ({len(ids)} tokens) + max_tokens must not exceed max_seq_len = {limit}",
            )
        return ids

    def _sampling(self, request: GenerationRequest) -> SamplingParams:
        """The request's options with its words as token ids."""
        own, able = request.sampling, self._target.capabilities.options
        for name in OPTIONS:
            words = {"logit_bias": request.embedding_bias, "bad_words": request.bad_words}.get(name, ())
            value = getattr(own, name)
            if (words or value != getattr(OFF, name)) and name not in able:
                field = "embedding_bias_words" if words and name == "logit_bias" else name
                limit = f"the target's engine cannot apply it; it applies {', '.join(able)}"
                raise InvalidRequestError(field, words or value, limit)
        if not request.bad_words and not request.embedding_bias:
            return own
        bias = dict(own.logit_bias)
        for token, weight in bias_by_id(request.embedding_bias, self._tokenizer):
            bias[token] = bias.get(token, 0.0) + weight
        bad = dict.fromkeys((*own.bad_words, *bad_word_ids(request.bad_words, self._tokenizer)))
        return replace(own, logit_bias=tuple(bias.items()), bad_words=tuple(bad))

    def _end_id(self, request: GenerationRequest) -> int | None:
        if request.end_id is None:
            return self._target.end_id
        if request.end_id == NO_END_ID:
            return None
        if not 0 <= request.end_id < self._target.vocab_size:
            limit = f"must be {NO_END_ID} (none) or a token id below {self._target.vocab_size}"
            raise InvalidRequestError("end_id", request.end_id, limit)
        return request.end_id

    def _reproducible(self, request: GenerationRequest, rule: str) -> bool:
        """Whether this request gives this text again when it is sent with the seed and the rule it got."""
        capable, k = self._target.capabilities, request.num_draft_tokens
        if not capable.deterministic:
            return False
        if request.sampling.greedy or rule == CoupledRule.name or k == 0:
            return True
        return k is not None and self._deterministic_drafts and not capable.drops_drafts


def sequence_seed(seed: int, sequence: int) -> int:
    """The seed of one of several answers: the first is the one that the request alone would get.

    Args:
        seed: of the request, in [0, 2**64).
        sequence: from 0.
    """
    if sequence == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:sequence:{sequence}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
