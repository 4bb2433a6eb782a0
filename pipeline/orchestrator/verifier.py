"""The target's side of a round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pipeline.common_prefix import common_prefix
from pipeline.drafting.base import Draft
from pipeline.engine.step import KvUse, StepModel, StepRequest, StepResult
from pipeline.engine.waiting import call, wanted
from pipeline.errors import StepError
from pipeline.sampling.params import SamplingParams
from pipeline.sampling.random import call_seed
from pipeline.sampling.rules import CoupledRule


@dataclass(frozen=True)
class TargetContext:
    """What every target call of an answer shares.

    Attributes:
        request_id: unique in this process.
        prompt_tokens: length of the prompt; what follows it is generated.
        sampling: the options of p.
        seed: of the answer.
        end_id: the token that ends it, if any.
        rule: acceptance rule, resolved.
        arrival: order of the request.
        min_tokens: generated tokens before which the end token is impossible.
        return_log_probs: ask for a log-probability per token.
        check: raises where the answer is no longer wanted; called while a call is waited for.
    """

    request_id: str
    prompt_tokens: int
    sampling: SamplingParams
    seed: int
    end_id: int | None
    rule: str
    arrival: int = 0
    min_tokens: int = 0
    return_log_probs: bool = False
    check: Callable[[], None] = wanted


@dataclass(frozen=True)
class Verdict:
    """What the target decided in one call.

    Attributes:
        tokens: to commit, in order: accepted drafts, then the correction or bonus, or plain tokens.
        drafted: drafts that were verified.
        accepted: how many of `tokens` are drafts.
        ended: the end token came next; it is not in `tokens`.
        kv: block counters of the call.
        log_probs: one per token, where asked for.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    ended: bool
    kv: KvUse
    log_probs: tuple[float, ...] = ()


class Verifier(Protocol):
    """Decides tokens under the target's law."""

    def verify(self, context: TargetContext, history: tuple[int, ...], draft: Draft, index: int) -> Verdict:
        """Verify a draft behind `history`; commits 1 to K + 1 tokens."""
        ...

    def decode(
        self, context: TargetContext, history: tuple[int, ...], count: int, index: int, continues: bool = False
    ) -> Verdict:
        """Decode `count` tokens plainly; `continues`: more of them will be asked for unless the text ends."""
        ...


class StepVerifier:
    """A verifier over a target step model.

    Args:
        step_model: the target engine.
        deadline_s: seconds after which a call is abandoned.
        vocab_size: width of its logits; a token beyond is an error, not a text. None looks at the sign alone.
    """

    def __init__(self, step_model: StepModel, deadline_s: float, vocab_size: int | None = None) -> None:
        self._step_model = step_model
        self._deadline_s = deadline_s
        self._vocab_size = vocab_size

    def verify(self, context: TargetContext, history: tuple[int, ...], draft: Draft, index: int) -> Verdict:
        new = len(draft.ids) + 1
        result = self._call(context, history, new, index, draft)
        used = draft.ids[: result.total_draft_tokens]
        accepted = common_prefix(result.output_ids, used)
        # The end token is never returned: no correction or bonus behind the accepted drafts means it came. A call whose
        # drafts were all dropped went on as plain decoding: there it came where tokens are missing.
        ended = len(result.output_ids) == accepted if used else len(result.output_ids) < new
        return Verdict(result.output_ids, len(used), accepted, ended, result.kv, result.log_probs)

    def decode(
        self, context: TargetContext, history: tuple[int, ...], count: int, index: int, continues: bool = False
    ) -> Verdict:
        result = self._call(context, history, count, index, None, continues)
        return Verdict(result.output_ids, 0, 0, len(result.output_ids) < count, result.kv, result.log_probs)

    def _call(
        self,
        context: TargetContext,
        history: tuple[int, ...],
        new: int,
        index: int,
        draft: Draft | None,
        continues: bool = False,
    ) -> StepResult:
        # Under coupled, noise belongs to a position of the text, whichever call computes it.
        coupled = context.rule == CoupledRule.name
        request = StepRequest(
            request_id=f"{context.request_id}/target/{index}",
            input_ids=history,
            max_new_tokens=new,
            draft_ids=draft.ids if draft else (),
            draft_logits=draft.logits if draft else None,
            sampling=context.sampling,
            seed=context.seed if coupled else call_seed(context.seed, index, "target"),
            end_id=context.end_id,
            rule=context.rule,
            arrival=context.arrival,
            min_tokens=max(0, context.min_tokens - (len(history) - context.prompt_tokens)),
            return_log_probs=context.return_log_probs,
            continues=continues,
        )
        result = call(self._step_model, request, self._deadline_s, "target", context.check)
        if len(result.output_ids) > new:
            raise StepError(f"the target returned {len(result.output_ids)} tokens, {new} were asked for")
        for token in result.output_ids:
            if token < 0 or (self._vocab_size is not None and token >= self._vocab_size):
                limit = "0 or more" if self._vocab_size is None else f"in [0, {self._vocab_size})"
                raise StepError(f"the target returned token {token}: a token id must be {limit}")
        if context.return_log_probs and len(result.log_probs) != len(result.output_ids):
            raise StepError(f"the target returned {len(result.log_probs)} log-probs, {len(result.output_ids)} tokens")
        if any(map(math.isnan, result.log_probs)):
            raise StepError("the target returned a log-probability that is not a number")
        return result
