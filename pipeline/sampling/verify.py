"""The engine's way in: verify the drafts of a batch of rows, draw plain tokens, draw drafts.

Which uniform of a call's seed decides what, counted from `start`, with K drafts:

    start + 0     .. start + K - 1    whether to keep draft i
    start + K     .. start + 2 K      the target's own token at position i: correction, bonus, match's draws

A plain token (K = 0) takes one number. A call that goes on for more tokens moves `start` by
`VerifyCall.uniforms` each time, so that the same number never serves two decisions. Drafting is plain
sampling under the draft's seed.

Under "coupled" no uniform is used: noise keyed by (seed, position in the sequence, token id) makes every
choice, plain and drafted ones too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.common_prefix import common_prefix
from pipeline.sampling.call import FloatArray, VerifyCall
from pipeline.sampling.head import Head
from pipeline.sampling.laws import laws, laws_from_log, processed
from pipeline.sampling.noise import choose, noise_keys
from pipeline.sampling.random import uniforms
from pipeline.sampling.rules import RULES, CoupledRule, Proposal, Randomness, Verdict, compare
from pipeline.sampling.vocabulary import draw, row_argmax


class _Scratch(threading.local):
    """Memory for q, kept by each thread: the page faults of a fresh array cost more than what is computed in it."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.float32)

    def take(self, *shape: int) -> FloatArray:
        size = math.prod(shape)
        if size > self._memory.size:
            self._memory = np.empty(size, np.float32)
        return self._memory[:size].reshape(shape)


_SCRATCH = _Scratch()

IMPOSSIBLE = -1
"""In place of a token, where logits were not finite or every token was forbidden."""


@dataclass(frozen=True)
class Decision:
    """One row's outcome: drafts kept, and the correction or bonus token after them, or IMPOSSIBLE."""

    accepted: int
    token: int


def follow(drafts: Sequence[int], best: Sequence[int]) -> Decision:
    """One greedy row whose logits nothing changes: what `verify` and `sample` decide, from what the pass has found.

    Args:
        drafts: K of them, perhaps none.
        best: the token of the largest logit at each of the K + 1 positions.
    """
    kept = common_prefix(drafts, best)
    return Decision(kept, best[kept])


def verify(logits: Tensor, calls: Sequence[VerifyCall], overwrite: bool = False) -> list[Decision]:
    """Decide one round of every row. Rows do not influence one another.

    Args:
        logits: [rows, P, vocab]: the target's raw logits, P >= K + 1 of every row; what is beyond a row's own
            K + 1 is ignored, and best left finite.
        calls: one per row; `check_call` has passed.
        overwrite: the logits are not needed any more (see `laws`).

    Returns:
        One Decision per row. A row without a possible token at a position it came to gets IMPOSSIBLE. Logits
        that are not finite at positions it did not come to are not seen: their caller looks for those.

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
        part = _pick(logits, rows, width + 1)
        verdict = _decide(kind, with_q, part, members, overwrite or len(rows) < len(calls))
        accepted, tokens = torch.stack((verdict.accepted, verdict.tokens)).tolist()  # one copy from a device
        decisions.update(zip(rows, map(Decision, accepted, tokens), strict=True))
    return [decisions[row] for row in range(len(calls))]


def sample(logits: Tensor, calls: Sequence[VerifyCall], head: Head | None = None, overwrite: bool = False) -> list[int]:
    """One plain token per row.

    Args:
        logits: [rows, width].
        calls: one per row; their drafts are not looked at, each uses up the uniform at `start`.
        head: which tokens the logits are of; None where all.
        overwrite: the logits are not needed any more (see `laws`).

    Returns:
        One token id per row, or IMPOSSIBLE.
    """
    if all(call.sampling.greedy for call in calls):
        params, contexts = [call.sampling for call in calls], [call.context for call in calls]
        x = processed(logits[:, None], params, contexts, head, overwrite)[:, 0]
        best = row_argmax(x)
        possible = torch.isfinite(x.gather(1, best[:, None])[:, 0])
        return _ids(best, possible, head)
    return sample_with_law(logits, calls, head, overwrite)[0]


def sample_with_law(
    logits: Tensor, calls: Sequence[VerifyCall], head: Head | None = None, overwrite: bool = False
) -> tuple[list[int], Tensor]:
    """One token per row and the law it was drawn from: for drafting, and for `return_generation_logits`.

    Args:
        logits, calls, head, overwrite: as in `sample`.

    Returns:
        One token id per row, or IMPOSSIBLE, and the laws [rows, width] float32 (`log_laws` makes them fit to
        send).
    """
    params, contexts = [call.sampling for call in calls], [call.context for call in calls]
    law = laws(logits[:, None], params, contexts, head, overwrite)[:, 0]
    by_noise = [row for row, call in enumerate(calls) if call.coupled]
    if len(by_noise) < len(calls):
        numbers = [0.0 if call.sampling.greedy else uniforms(call.seed, call.start, 1)[0] for call in calls]
        tokens = draw(law, torch.tensor(numbers, dtype=torch.float64, device=law.device))
    else:
        tokens = torch.empty(len(calls), dtype=torch.int64, device=law.device)
    if by_noise:
        keys = _noise([calls[row] for row in by_noise], 1, law.device)[:, 0]
        part = law if len(by_noise) == len(calls) else law[by_noise]
        tokens[by_noise] = choose(part, keys, None if head is None else head.ids)
    return _ids(tokens, ~law[:, 0].isnan(), head), law


def _group(call: VerifyCall) -> tuple[str, bool]:
    """Rows of one group are decided together: (greedy, plain or the rule's name; whether there is a q)."""
    if call.sampling.greedy:
        return "greedy", False
    if call.coupled:
        return call.rule, False
    if not call.drafts:
        return "plain", False
    return call.rule, call.draft_logits is not None and RULES[call.rule].uses_q


def _decide(kind: str, with_q: bool, logits: Tensor, calls: Sequence[VerifyCall], overwrite: bool) -> Verdict:
    """One group; logits [rows, K + 1, vocab]."""
    if kind == "plain":
        tokens, _ = sample_with_law(logits[:, 0], calls, None, overwrite)
        chosen = torch.tensor(tokens)
        return Verdict(torch.zeros_like(chosen), chosen)
    params, contexts = [call.sampling for call in calls], [call.context for call in calls]
    proposal = _proposal(calls, with_q, logits)
    if kind == "greedy":
        # p is one-hot at the argmax, so every rule keeps drafts while they equal it.
        x = processed(logits, params, contexts, None, overwrite)
        own = row_argmax(x)
        possible = torch.isfinite(x.gather(2, own[:, :, None])[:, :, 0])
        return _without(~possible, compare(own, proposal))
    p = laws(logits, params, contexts, None, overwrite)
    return _without(p[:, :, 0].isnan(), RULES[kind].decide(p, proposal, _randomness(kind, calls, proposal)))


def _without(impossible: Tensor, verdict: Verdict) -> Verdict:
    """IMPOSSIBLE for rows that came to an impossible position [rows, K + 1]."""
    reached = torch.arange(impossible.shape[1], device=impossible.device) <= verdict.accepted[:, None]
    return Verdict(verdict.accepted, verdict.tokens.masked_fill((impossible & reached).any(-1), IMPOSSIBLE))


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
    """q [rows, width, vocab], valid until the thread's next call; any law beyond a row's drafts."""
    sent = [call.draft_logits for call in calls if call.draft_logits is not None]
    # A draft's vocabulary may be padded to another size: the softmax is over all that it sent.
    longest = max(vocab, *(array.shape[1] for array in sent))
    q = torch.from_numpy(_SCRATCH.take(len(sent), width, longest))
    for row, array in enumerate(sent):
        count, size = array.shape
        source = torch.from_numpy(array if array.flags.writeable else array.copy())
        laws_from_log(source, out=q[row, :count, :size])
        q[row, :count, size:] = 0.0
        q[row, count:] = 0.0
    return q.to(device)[:, :, :vocab]


def _randomness(kind: str, calls: Sequence[VerifyCall], proposal: Proposal) -> Randomness:
    rows, width = proposal.drafts.shape
    device = proposal.drafts.device
    accept, final = np.zeros((rows, width)), np.zeros((rows, width + 1))
    noise = None
    if kind == CoupledRule.name:
        noise = _noise(calls, width + 1, device)
    else:
        for row, call in enumerate(calls):
            count = len(call.drafts)
            numbers = uniforms(call.seed, call.start, call.uniforms)
            accept[row, :count] = numbers[:count]
            final[row, : count + 1] = numbers[count:]
    return Randomness(torch.from_numpy(accept).to(device), torch.from_numpy(final).to(device), noise)


def _noise(calls: Sequence[VerifyCall], positions: int, device: torch.device) -> Tensor:
    """[rows, positions] int64 keys, from the position after each row's tokens on."""
    first = np.array([len(call.tokens) for call in calls], np.int64)
    keys = noise_keys([call.seed for call in calls], first[:, None] + np.arange(positions))
    return torch.from_numpy(keys).to(device)


def _ids(tokens: Tensor, possible: Tensor, head: Head | None) -> list[int]:
    """Indices into the head -> token ids, IMPOSSIBLE where nothing was possible."""
    ids = tokens if head is None else head.ids[tokens]
    found: list[int] = ids.masked_fill(~possible, IMPOSSIBLE).tolist()
    return found
