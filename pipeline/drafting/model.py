"""A draft model: K steps of a small engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.drafting.ahead import AheadCall
from pipeline.drafting.base import Draft, DraftContext, Drafter, DraftSession, Offer
from pipeline.engine.manifest import Capabilities, Manifest
from pipeline.engine.step import FloatArray, StepModel, StepRequest, StepResult
from pipeline.engine.waiting import call
from pipeline.errors import StepError
from pipeline.sampling.laws import ZERO_BELOW
from pipeline.sampling.params import OPTIONS, TRUNCATIONS, SamplingParams, tensorrt_divisor
from pipeline.sampling.random import Role, call_seed
from pipeline.sampling.rules import RULE_AUTO, RULES, CoupledRule

COUPLED = CoupledRule.name


class ModelDrafter(Drafter):
    """Asks a draft step model.

    Args:
        step_model: the draft engine.
        manifest: its limits and capabilities.
        deadline_s: seconds after which a call is abandoned.
        greedy: draft the most probable tokens, whatever the request's temperature: a one-hot q.
    """

    def __init__(self, step_model: StepModel, manifest: Manifest, deadline_s: float, greedy: bool = False) -> None:
        self._step_model = step_model
        self._manifest = manifest
        self._deadline_s = deadline_s
        self._greedy = greedy
        self.deterministic = manifest.capabilities.deterministic

    def start(self, context: DraftContext) -> ModelSession:
        return ModelSession(context, self._step_model, self._manifest, self._deadline_s, self._greedy)


class ModelSession(DraftSession):
    """Drafts of one request. Calls carry no end_id, min_tokens or stop words: EOS is an ordinary draft token."""

    def __init__(
        self, context: DraftContext, step_model: StepModel, manifest: Manifest, deadline_s: float, greedy: bool = False
    ) -> None:
        self._context = context
        self._step_model = step_model
        self._manifest = manifest
        self._deadline_s = deadline_s
        self._tokens = list(context.prompt_ids)
        capabilities = manifest.capabilities
        self._sampling = draft_sampling(context.sampling, capabilities, greedy)
        self._coupled = context.rule == COUPLED and COUPLED in capabilities.rules
        # A greedy draft is one-hot, and some rules never look at q: K laws need not travel.
        rule = RULES.get(context.rule)
        self._needs_q = not self._sampling.greedy and (rule is None or rule.uses_q)
        self._ahead: AheadCall | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)
        if self._ahead is not None and not self._ahead.follows(tokens):
            self.close()

    def offers(self, limit: int) -> tuple[Offer, ...]:
        room = self._manifest.limits.max_seq_len - len(self._tokens)
        most = min(limit, room)
        ready = self._ahead is not None and self._ahead.ready
        return (Offer("model", "model", most, ready),) if most > 0 else ()

    def propose(self, offer: Offer, k: int, round_index: int) -> Draft:
        ahead, self._ahead = self._ahead, None
        found = None if ahead is None else ahead.result(self._context.check)
        if found is not None:
            return self._draft(found, 1, k)
        request = self._request(self._tokens, k, round_index, "draft")
        return self._draft(call(self._step_model, request, self._deadline_s, "draft", self._context.check), 0, k)

    def look_ahead(self, draft: Draft, k: int, round_index: int) -> bool:
        text = [*self._tokens, *draft.ids]
        most = min(k, self._manifest.limits.max_seq_len - len(text) - 1)
        if draft.source != "model" or most < 1:
            return False
        # One token more than are wanted: the first stands where the target decides by itself.
        request = self._request(text, most + 1, round_index, "ahead")
        self._ahead = AheadCall(self._step_model, request, draft.ids, self._deadline_s)
        return True

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.drop()
            self._ahead = None

    def _request(self, text: Sequence[int], new: int, round_index: int, role: Role) -> StepRequest:
        context = self._context
        return StepRequest(
            request_id=f"{context.request_id}/{role}/{round_index}",
            input_ids=tuple(text),
            max_new_tokens=new,
            sampling=self._sampling,
            # Coupled: the noise of the target at the same places, so that both choose alike.
            seed=context.seed if self._coupled else call_seed(context.seed, round_index, role),
            rule=COUPLED if self._coupled else RULE_AUTO,
            return_logits=self._needs_q,
            arrival=context.arrival,
        )

    def _draft(self, result: StepResult, first: int, k: int) -> Draft:
        """Tokens from place `first` on, with their own laws."""
        ids = result.output_ids[first : first + k]
        if not ids:
            raise StepError("the draft returned no token")
        for token in ids:
            if not 0 <= token < self._manifest.padded_vocab_size:
                limit = f"must be in [0, {self._manifest.padded_vocab_size})"
                raise StepError(f"the draft returned token {token}: a token id {limit}")
        if not self._needs_q:
            return Draft("model", ids, ahead=first > 0)
        logits = result.generation_logits
        if logits is None or logits.shape[0] < first + len(ids):
            raise StepError("the draft returned no generation_logits")
        laws = log_q(logits[first : first + len(ids)], self._sampling, self._manifest)
        ids, laws = _usable(ids, laws)
        return Draft("model", ids, laws, ahead=first > 0)


def _usable(ids: tuple[int, ...], laws: FloatArray) -> tuple[tuple[int, ...], FloatArray]:
    """What the target can judge. A law that is none ends the block before it, which is exact: it depends on the tokens
    before it alone, and those are proposed. Refusing the whole block would withhold them for what they are.

    Args:
        laws: [K, vocab] log q up to a constant per row.

    Raises:
        StepError: nothing is left, or the draft returned what an honest law never gives.
    """
    if laws.shape[1] <= max(ids):
        raise StepError(f"the draft returned laws of {laws.shape[1]} tokens, and token {max(ids)}")
    # The largest number of a row is NaN or +inf where any is, and -inf where there is no law.
    finite = np.isfinite(laws.max(axis=1))
    good = len(ids) if finite.all() else int(finite.argmin())
    if not good:
        raise StepError("the draft returned laws with numbers that are not finite")
    if (laws[np.arange(good), list(ids[:good])] <= ZERO_BELOW).any():
        raise StepError("the draft returned a token that is impossible under its own law")
    return ids[:good], laws[:good]


def draft_sampling(sampling: SamplingParams, capabilities: Capabilities, greedy: bool = False) -> SamplingParams:
    """The request's options as far as the draft may be sent them.

    What is left out moves q away from p and lowers acceptance; the text's law is p's whatever q is, as long as the
    target is told the q that was drawn from. An engine that returns raw logits does not tell it: there q can be
    made from the temperature alone, and nothing else is sent.

    Args:
        sampling: of the request.
        capabilities: of the draft engine.
        greedy: the deployment's drafts are greedy.
    """
    options = set(capabilities.draft_options)
    greedy = greedy or sampling.greedy or "temperature" not in options
    if greedy:
        options -= set(TRUNCATIONS)
    elif capabilities.generation_logits == "raw":
        options &= {"temperature"}
    kept: dict[str, Any] = {name: getattr(sampling, name) for name in OPTIONS if name in options}
    return SamplingParams(**kept)


def log_q(logits: FloatArray, sampling: SamplingParams, manifest: Manifest) -> FloatArray:
    """What the target takes as a plain softmax: log laws as they are, raw logits divided by the temperature."""
    if manifest.capabilities.generation_logits == "log_law":
        return logits
    scaled: FloatArray = (logits / tensorrt_divisor(sampling.temperature)).astype(np.float32)
    return scaled
