"""The engine's way in: verify the drafts of a batch of rows, draw plain tokens, draw drafts.

Which uniform of a call's seed decides what, counted from `start`, with K drafts:

    start + 0     .. start + K - 1    whether to keep draft i
    start + K     .. start + 2 K      the target's own token at position i: correction, bonus, match's draws

A plain token (K = 0) takes one number. A call that goes on for more tokens moves `start` by
`VerifyCall.uniforms` each time, so that the same number never serves two decisions. Drafting is plain
sampling under the draft's seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.errors import InvalidRequestError
from pipeline.sampling.laws import ZERO_BELOW, ZERO_LOG, laws, laws_from_log
from pipeline.sampling.params import SamplingParams
from pipeline.sampling.random import uniforms
from pipeline.sampling.rules import RULES, Proposal, Randomness, Verdict, compare
from pipeline.sampling.vocabulary import draw, row_argmax

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class VerifyCall:
    """One row's part in a verify.

    Attributes:
        drafts: the K tokens to verify; empty for plain decoding.
        draft_logits: [K, draft vocab] log q up to a constant per row; None where q is one-hot at each draft.
        sampling: the options of the target's law.
        rule: name of the acceptance rule; of no account for a greedy row or without drafts.
        seed: of this call.
        start: index of the first uniform to use.
    """

    drafts: tuple[int, ...]
    draft_logits: FloatArray | None
    sampling: SamplingParams
    rule: str
    seed: int
    start: int = 0

    @property
    def uniforms(self) -> int:
        """How many uniforms this call uses up: the next one of the same seed starts that much later."""
        return 2 * len(self.drafts) + 1


@dataclass(frozen=True)
class Decision:
    """One row's outcome: drafts kept, and the correction or bonus token after them."""

    accepted: int
    token: int


def check_call(call: VerifyCall, vocab: int) -> None:
    """Refuse what cannot be verified, before it is in a batch with others.

    Args:
        call: the row.
        vocab: size of the target's vocabulary.

    Raises:
        InvalidRequestError: naming draft_input_ids, draft_logits or acceptance_rule, the value and the limit.
    """
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


def verify(logits: Tensor, calls: Sequence[VerifyCall]) -> list[Decision]:
    """Decide one round of every row. Rows do not influence one another.

    Args:
        logits: [rows, P, vocab]: the target's raw logits, P >= K + 1 of every row; what is beyond a row's own
            K + 1 is ignored, and best left finite.
        calls: one per row; `check_call` has passed.

    Returns:
        One Decision per row. A row whose logits are not finite gets some token: ask `finite_rows` first.

    Raises:
        ValueError: the number of calls, or P, does not fit.
    """
    if len(calls) != logits.shape[0]:
        raise ValueError(f"{len(calls)} calls for {logits.shape[0]} rows of logits")
    groups: dict[tuple[str, bool], list[int]] = {}
    for row, call in enumerate(calls):
        if len(call.drafts) >= logits.shape[1]:
            raise ValueError(f"{len(call.drafts)} drafts for {logits.shape[1]} positions of logits")
        groups.setdefault(_group(call), []).append(row)
    decisions: dict[int, Decision] = {}
    for (kind, with_q), rows in groups.items():
        members = [calls[row] for row in rows]
        width = max(len(call.drafts) for call in members)
        verdict = _decide(kind, with_q, _pick(logits, rows, width + 1), members)
        accepted, tokens = verdict.accepted.tolist(), verdict.tokens.tolist()
        decisions.update(zip(rows, map(Decision, accepted, tokens), strict=True))
    return [decisions[row] for row in range(len(calls))]


def sample(logits: Tensor, calls: Sequence[VerifyCall]) -> list[int]:
    """One plain token per row.

    Args:
        logits: [rows, vocab].
        calls: one per row; their drafts are not looked at, each uses up the uniform at `start`.

    Returns:
        One token per row.
    """
    if all(call.sampling.greedy for call in calls):
        return _integers(row_argmax(logits))
    return sample_with_law(logits, calls)[0]


def sample_with_law(logits: Tensor, calls: Sequence[VerifyCall]) -> tuple[list[int], Tensor]:
    """One token per row and the law it was drawn from: for drafting, and for `return_generation_logits`.

    Args:
        logits: [rows, vocab].
        calls: as in `sample`.

    Returns:
        One token per row, and the laws [rows, vocab] float32 (`log_laws` makes them fit to send).
    """
    law = laws(logits[:, None], [call.sampling for call in calls])[:, 0]
    numbers = [0.0 if call.sampling.greedy else uniforms(call.seed, call.start, 1)[0] for call in calls]
    u = torch.tensor(numbers, dtype=torch.float64, device=law.device)
    return _integers(draw(law, u)), law


def _group(call: VerifyCall) -> tuple[str, bool]:
    """Rows of one group are decided together: (greedy, plain or the rule's name; whether there is a q)."""
    if call.sampling.greedy:
        return "greedy", False
    if not call.drafts:
        return "plain", False
    return call.rule, call.draft_logits is not None and RULES[call.rule].uses_q


def _decide(kind: str, with_q: bool, logits: Tensor, calls: Sequence[VerifyCall]) -> Verdict:
    """One group; logits [rows, K + 1, vocab]."""
    if kind == "plain":
        tokens, _ = sample_with_law(logits[:, 0], calls)
        chosen = torch.tensor(tokens)
        return Verdict(torch.zeros_like(chosen), chosen)
    proposal = _proposal(calls, with_q, logits)
    if kind == "greedy":
        # p is one-hot at the argmax, so every rule keeps drafts while they equal it.
        return compare(row_argmax(logits), proposal)
    p = laws(logits, [call.sampling for call in calls])
    return RULES[kind].decide(p, proposal, _randomness(calls, proposal))


def _pick(logits: Tensor, rows: list[int], positions: int) -> Tensor:
    part = logits[:, :positions]
    return part if len(rows) == logits.shape[0] else part[torch.tensor(rows, device=logits.device)]


def _proposal(calls: Sequence[VerifyCall], with_q: bool, logits: Tensor) -> Proposal:
    rows, width, vocab = logits.shape[0], logits.shape[1] - 1, logits.shape[2]
    drafts = torch.zeros(rows, width, dtype=torch.int64)
    for row, call in enumerate(calls):
        drafts[row, : len(call.drafts)] = torch.tensor(call.drafts, dtype=torch.int64)
    lengths = torch.tensor([len(call.drafts) for call in calls])
    q = _draft_laws(calls, width, vocab, logits.device) if with_q else None
    return Proposal(drafts.to(logits.device), lengths.to(logits.device), q)


def _draft_laws(calls: Sequence[VerifyCall], width: int, vocab: int, device: torch.device) -> Tensor:
    """q [rows, width, vocab]; any law beyond a row's drafts."""
    sent = [call.draft_logits for call in calls if call.draft_logits is not None]
    # A draft's vocabulary may be padded to another size: the softmax is over all that it sent.
    longest = max(vocab, *(array.shape[1] for array in sent))
    stacked = np.empty((len(sent), width, longest), dtype=np.float32)
    for row, array in enumerate(sent):
        count, size = array.shape
        stacked[row, :count, :size] = array
        stacked[row, :count, size:] = ZERO_LOG
        stacked[row, count:] = 0.0
    q = torch.from_numpy(stacked).to(device)
    return laws_from_log(q, out=q)[:, :, :vocab]


def _randomness(calls: Sequence[VerifyCall], proposal: Proposal) -> Randomness:
    rows, width = proposal.drafts.shape
    accept, final = np.zeros((rows, width)), np.zeros((rows, width + 1))
    for row, call in enumerate(calls):
        count = len(call.drafts)
        numbers = uniforms(call.seed, call.start, call.uniforms)
        accept[row, :count] = numbers[:count]
        final[row, : count + 1] = numbers[count:]
    device = proposal.drafts.device
    return Randomness(torch.from_numpy(accept).to(device), torch.from_numpy(final).to(device))


def _integers(tokens: Tensor) -> list[int]:
    return [int(token) for token in tokens.tolist()]
