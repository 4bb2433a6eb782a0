"""From logits to laws: the one function that makes both p and q.

Order: penalties, bias, what is forbidden (`processors`) -> temperature -> top-k -> top-p -> min-p ->
renormalise. Top-p is nucleus sampling (Holtzman et al., arXiv 1904.09751): the smallest set of most probable
tokens whose probability reaches top_p, the token that crosses included. Min-p (Nguyen et al., arXiv
2407.01082) then drops tokens below min_p times the largest probability. Tokens of equal probability are
ordered by token id.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor

from pipeline.sampling.context import NO_CONTEXT, Context
from pipeline.sampling.head import Head
from pipeline.sampling.params import SamplingParams
from pipeline.sampling.processors import edit, edited
from pipeline.sampling.vocabulary import one_hot, row_argmax, row_sums, row_topk

FIRST_LOOK = 64
"""Most probable tokens looked at first; rows whose set is larger are looked at again with more."""
GROWTH = 8

MIN_TEMPERATURE = 1e-30
"""Smaller temperatures give the same law, and would overflow float32."""

ZERO_LOG = -1e9
"""What stands for log 0 where a law crosses the server."""
ZERO_BELOW = -1e8
"""A log probability at or below it reads as probability 0."""


def laws(
    logits: Tensor,
    params: Sequence[SamplingParams],
    contexts: Sequence[Context] | None = None,
    head: Head | None = None,
    overwrite: bool = False,
) -> Tensor:
    """The law at each position, after every processor.

    Args:
        logits: [rows, positions, vocab] of any float type; finite, or -inf for a token that cannot be.
        params: one per row.
        contexts: one per row: histories, end tokens; None where nothing has been said yet.
        head: which tokens the logits are of; None where all.
        overwrite: the logits are not needed any more. On a CPU the page faults of a fresh tensor of their size
            cost more than the softmax.

    Returns:
        [rows, positions, vocab] float32 (float64 for float64 logits): each law sums to 1; a greedy row is
        exactly one-hot at the largest logit, the first one on ties. A law with no possible token is NaN.

    Raises:
        ValueError: not one SamplingParams per row.
    """
    if len(params) != len(logits):
        raise ValueError(f"{len(params)} sampling params for {len(logits)} rows")
    x = processed(logits, params, contexts, head, overwrite)
    dtype = torch.promote_types(x.dtype, torch.float32)
    greedy = [row for row, option in enumerate(params) if option.greedy]
    if len(greedy) == len(params):
        return greedy_laws(x, dtype)
    scale = [1.0 if option.greedy else max(option.temperature, MIN_TEMPERATURE) for option in params]
    chosen = greedy_laws(x[greedy], dtype) if greedy else None
    own = x.is_contiguous() and x.dtype == dtype and (overwrite or x is not logits)
    law = torch.div(x, torch.tensor(scale, dtype=dtype, device=x.device)[:, None, None], out=x if own else None)
    torch.softmax(law, dim=-1, out=law)
    _truncate(law, params)
    if chosen is not None:
        law[greedy] = chosen
    return law


def processed(
    logits: Tensor,
    params: Sequence[SamplingParams],
    contexts: Sequence[Context] | None = None,
    head: Head | None = None,
    overwrite: bool = False,
) -> Tensor:
    """Logits after penalties, bias and what is forbidden: what a greedy row takes the largest of.

    Args: as in `laws`.

    Returns:
        `logits` where no row asks for a change, or where they may be overwritten; else a changed copy, in
        float32 or better.
    """
    known = [NO_CONTEXT] * len(params) if contexts is None else contexts
    if not edited(params, known):
        return logits
    dtype = torch.promote_types(logits.dtype, torch.float32)
    keep = not (overwrite and logits.is_contiguous())
    own = logits.to(dtype, copy=keep, memory_format=torch.contiguous_format)
    edit(own, params, known, head)
    return own


def greedy_laws(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., vocab] -> one-hot laws at the largest logit; NaN where even that is -inf or not finite."""
    best = row_argmax(logits)
    law = one_hot(best, logits.shape[-1], dtype)
    impossible = ~torch.isfinite(logits.gather(-1, best[..., None])[..., 0])
    if bool(impossible.any()):
        law[impossible] = torch.nan
    return law


def log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log probability of one token at each position, before any sampling option.

    Args:
        logits: [n, vocab].
        tokens: [n] int64, on any device.

    Returns:
        [n] float64: log_softmax of the logits at the token.
    """
    x = logits.float() if logits.dtype != torch.float64 else logits
    largest = x.amax(-1, keepdim=True)
    total = row_sums((x - largest).exp_())
    own = x.gather(1, tokens.to(x.device)[:, None]) - largest
    return own[:, 0].double() - total.log()


def log_laws(law: Tensor) -> Tensor:
    """[..., vocab] laws -> their logarithms, ZERO_LOG for probability 0: fit to send as `draft_logits`."""
    return law.log().clamp_(min=ZERO_LOG)


def laws_from_log(draft_logits: Tensor, out: Tensor | None = None) -> Tensor:
    """The laws that `draft_logits` stand for: a plain softmax.

    Args:
        draft_logits: [..., vocab] log q up to a constant per row, the largest well above ZERO_BELOW.
        out: where to put them; may be draft_logits itself.

    Returns:
        [..., vocab] float32 (float64 for float64); exactly 0 where draft_logits is at or below ZERO_BELOW,
        because e to that power, relative to the row's largest, is 0 in either precision.
    """
    dtype = torch.promote_types(draft_logits.dtype, torch.float32)
    return torch.softmax(draft_logits, dim=-1, dtype=dtype, out=out)


def _truncate(law: Tensor, params: Sequence[SamplingParams]) -> None:
    """Top-k, top-p, min-p and renormalise, in place, in the rows of law [rows, positions, vocab] that ask for it."""
    _, positions, vocab = law.shape
    asked = [
        row
        for row, option in enumerate(params)
        if not option.greedy and (0 < option.top_k < vocab or option.top_p < 1.0 or option.min_p > 0.0)
    ]
    if not asked:
        return
    device = law.device
    flat = law.view(-1, vocab)
    row = torch.tensor(asked, device=device)
    pending = (row[:, None] * positions + torch.arange(positions, device=device)).flatten()
    ks = torch.tensor([min(params[r].top_k or vocab, vocab) for r in asked], device=device)
    ps = torch.tensor([params[r].top_p for r in asked], dtype=torch.float64, device=device)
    floors = torch.tensor([params[r].min_p for r in asked], dtype=torch.float64, device=device)
    ks, ps, floors = (limit.repeat_interleave(positions) for limit in (ks, ps, floors))
    look = FIRST_LOOK
    while pending.numel():
        look = min(look, vocab)
        picked = flat if pending.numel() == flat.shape[0] else flat[pending]
        values, tokens = row_topk(picked, look)
        kept, covered = _cut(values, ks, ps, floors, vocab)
        done = pending[covered]
        if done.numel() == flat.shape[0]:
            flat.zero_()  # three times faster than row by row
        else:
            flat.index_fill_(0, done, 0.0)
        flat[done[:, None], tokens[covered]] = kept[covered].to(flat.dtype)
        pending, ks, ps, floors = (limit[~covered] for limit in (pending, ks, ps, floors))
        # Choosing a good part of the vocabulary costs as much as sorting all of it.
        look = look * GROWTH if look * GROWTH * GROWTH < vocab else vocab


def _cut(values: Tensor, ks: Tensor, ps: Tensor, floors: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """What is kept of the largest probabilities, renormalised.

    Args:
        values: [n, look] probabilities, descending.
        ks: [n] tokens that top-k keeps, vocab where it is off.
        ps: [n] float64 top_p.
        floors: [n] float64 min_p.
        vocab: how many tokens there are.

    Returns:
        Kept probabilities [n, look] float64, and [n] bool: True where no token outside could be kept.
    """
    look = values.shape[-1]
    rank = torch.arange(look, device=values.device)
    masses = values.double().masked_fill(rank >= ks[:, None], 0.0)
    reached = masses.cumsum(-1)
    total = torch.where(ks < vocab, reached[:, -1], 1.0)
    limit = torch.where(ps < 1.0, ps * total, torch.inf)
    keep = (functional.pad(reached[:, :-1], (1, 0)) < limit[:, None]) & (masses > 0)
    keep &= masses >= masses[:, :1] * floors[:, None]
    cut = (keep.sum(-1, keepdim=True) - 1).clamp_(min=0)
    # The sum at the cut, not a fresh one: it is the same for every `look`, and so with any neighbours.
    kept = torch.where(keep, masses, 0.0) / reached.gather(1, cut)
    if look == vocab:
        return kept, torch.ones_like(ks, dtype=torch.bool)
    smallest = values[:, -1]
    # A token outside is at most `smallest`: it could tie with the cut only where the two are equal.
    clear = values.gather(1, cut)[:, 0] > smallest
    return kept, (clear & ((ks <= look) | (ks == vocab))) | (smallest == 0)
