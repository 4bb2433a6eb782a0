"""One row's part in a verify, and what is refused before it shares a batch with others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.errors import InvalidRequestError
from pipeline.sampling.context import Context
from pipeline.sampling.laws import ZERO_BELOW
from pipeline.sampling.params import SamplingParams
from pipeline.sampling.processors import check_tokens
from pipeline.sampling.rules import RULES, CoupledRule

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class VerifyCall:
    """One row's part in a verify.

    Attributes:
        drafts: the K tokens to verify; empty for plain decoding.
        draft_logits: [K, draft vocab] log q up to a constant per row; None where q is one-hot at each draft.
        sampling: the options of the target's law.
        rule: name of the acceptance rule; of no account for a greedy row or without drafts.
        seed: of this call; under "coupled" of the request.
        start: index of the first uniform to use.
        tokens: the sequence so far, prompt included: history of the processors, and its length is the
            position of the noise.
        end_id, min_tokens: the first min_tokens tokens decided here are not end_id.
    """

    drafts: tuple[int, ...]
    draft_logits: FloatArray | None
    sampling: SamplingParams
    rule: str
    seed: int
    start: int = 0
    tokens: Sequence[int] = ()
    end_id: int | None = None
    min_tokens: int = 0

    @property
    def uniforms(self) -> int:
        """How many uniforms this call uses up: the next one of the same seed starts that much later."""
        return 2 * len(self.drafts) + 1

    @property
    def context(self) -> Context:
        """What the processors look at."""
        return Context(self.tokens, self.drafts, self.end_id, self.min_tokens)

    @property
    def coupled(self) -> bool:
        """True where noise makes the choice."""
        return self.rule == CoupledRule.name and not self.sampling.greedy


def check_call(call: VerifyCall, vocab: int) -> None:
    """Refuse what cannot be verified, before it is in a batch with others.

    Args:
        call: the row.
        vocab: size of the target's vocabulary.

    Raises:
        InvalidRequestError: naming draft_input_ids, draft_logits, acceptance_rule or a sampling option, the
            value and the limit.
    """
    check_tokens(call.sampling, call.end_id, vocab)
    width = len(call.drafts)
    for token in call.drafts:
        if not 0 <= token < vocab:
            raise InvalidRequestError("draft_input_ids", token, f"must be a token id in [0, {vocab})")
    if width and call.rule not in RULES:
        raise InvalidRequestError("acceptance_rule", call.rule, f"must be one of {', '.join(RULES)}")
    if call.draft_logits is None:
        return
    shape = call.draft_logits.shape
    if len(shape) != 2 or shape[0] != width or (width and shape[1] <= max(call.drafts)):
        limit = f"must have the shape [{width}, vocabulary of the draft], drafts included"
        raise InvalidRequestError("draft_logits", list(shape), limit)
    for i, token in enumerate(call.drafts):
        # The largest number of a row is NaN or +inf where any is.
        largest, own = float(call.draft_logits[i].max()), float(call.draft_logits[i, token])
        if not math.isfinite(largest):
            raise InvalidRequestError("draft_logits", largest, f"row {i} must hold numbers, or -inf, not all -inf")
        if own <= ZERO_BELOW:
            limit = f"draft {i} (token {token}) must have a probability above 0 under its own law"
            raise InvalidRequestError("draft_logits", own, limit)
