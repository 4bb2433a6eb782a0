"""Reductions along the vocabulary axis that read each number once and do not depend on the number of rows.

Each works in two levels, over chunks of the vocabulary: on a CPU that is several times faster than torch's
argmax, topk and float64 cumsum over a long axis. Torch splits the sum of a lone row among threads, and so
changes its last bits; chunks are always many.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

CHUNK = 256
TOPK_CHUNKS = (64, 16)


def row_argmax(x: Tensor) -> Tensor:
    """Index of the largest number of each row, the first one on ties.

    Args:
        x: [..., vocab]; -inf is allowed, NaN counts as largest.

    Returns:
        [...] int64.
    """
    flat = x.reshape(-1, x.shape[-1])
    parts = [main.amax(-1) for main in _main_chunks(flat, CHUNK)] + [
        tail.amax(-1, keepdim=True) for tail in _tail(flat, CHUNK)
    ]
    chunk = torch.cat(parts, dim=-1).argmax(-1)
    values, tokens = chunk_at(flat, chunk)
    return tokens.gather(1, values.argmax(-1, keepdim=True)).reshape(x.shape[:-1])


def row_sums(x: Tensor) -> Tensor:
    """[rows, vocab] -> [rows] float64."""
    return chunk_sums(x).sum(-1)


def chunk_sums(x: Tensor) -> Tensor:
    """Sum of each chunk of each row.

    Args:
        x: [rows, vocab].

    Returns:
        [rows, ceil(vocab / CHUNK)] float64; each chunk is summed in x's own precision.
    """
    parts = [main.sum(-1) for main in _main_chunks(x, CHUNK)] + [tail.sum(-1, keepdim=True) for tail in _tail(x, CHUNK)]
    return torch.cat(parts, dim=-1).double()


def chunk_at(x: Tensor, chunk: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk of each row.

    Args:
        x: [rows, vocab].
        chunk: [rows] int64, which one.

    Returns:
        Values [rows, CHUNK] and their tokens [rows, CHUNK] int64, or [rows, vocab] of a smaller vocabulary.
        The last chunk is filled up by repeats of the last token, so its first occurrence is the real one.
    """
    tokens = chunk[:, None] * CHUNK + torch.arange(min(CHUNK, x.shape[-1]), device=x.device)
    tokens = tokens.clamp_(max=x.shape[-1] - 1)
    return x.gather(1, tokens), tokens


def row_topk(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest numbers of each row in descending order, ties among them by ascending token.

    Which of several numbers equal to the smallest one returned are in is not defined unless count == vocab: a
    caller whose answer could depend on it asks for more.

    Args:
        x: [rows, vocab].
        count: 1 .. vocab.

    Returns:
        Values [rows, count] and tokens [rows, count] int64.
    """
    vocab = x.shape[-1]
    if count >= vocab:
        ordered = torch.sort(x, dim=-1, descending=True, stable=True)
        return ordered.values, ordered.indices
    values, tokens = _topk(x, count)
    if bool((values[:, 1:] == values[:, :-1]).any()):
        tokens, order = tokens.sort(-1)
        values, order = torch.sort(values.gather(1, order), dim=-1, descending=True, stable=True)
        tokens = tokens.gather(1, order)
    return values, tokens


def _topk(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest numbers lie in the `count` chunks with the largest maxima: worth it if those are few."""
    rows, width = x.shape
    size = next((size for size in TOPK_CHUNKS if 2 * count * size <= width), None)
    if size is None:
        return torch.topk(x, count, dim=-1)
    (main,) = _main_chunks(x, size)
    chunks = torch.topk(main.amax(-1), count, dim=-1).indices  # [rows, count]
    first = torch.arange(rows, device=x.device)[:, None] * main.shape[1]
    found = main.reshape(-1, size).index_select(0, (first + chunks).flatten()).view(rows, -1)
    values, at = _topk(torch.cat([found, *_tail(x, size)], dim=-1), count)
    inside = chunks.gather(1, (at // size).clamp(max=count - 1)) * size + at % size
    beyond = at - found.shape[-1] + main.shape[1] * size
    return values, torch.where(at < found.shape[-1], inside, beyond)


def _main_chunks(x: Tensor, size: int) -> list[Tensor]:
    """[[rows, vocab // size, size]], or [] where the vocabulary is shorter than a chunk."""
    whole = x.shape[-1] // size
    return [x[:, : whole * size].view(x.shape[0], whole, size)] if whole else []


def _tail(x: Tensor, size: int) -> list[Tensor]:
    """[[rows, vocab % size]], or [] where the chunks fit."""
    whole = x.shape[-1] // size
    return [x[:, whole * size :]] if x.shape[-1] % size else []


def one_hot(tokens: Tensor, vocab: int, dtype: torch.dtype) -> Tensor:
    """[...] int64 -> [..., vocab] with 1 at the token and 0 elsewhere."""
    law = torch.zeros(*tokens.shape, vocab, dtype=dtype, device=tokens.device)
    return law.scatter_(-1, tokens[..., None], 1.0)


def draw(law: Tensor, u: Tensor) -> Tensor:
    """One token from each law, by inverting its cumulative sum with one uniform.

    The chunk is found first, then the token in it, each with a float64 cumulative sum; a token's probability
    is off by no more than the rounding of the law's own numbers.

    Args:
        law: [rows, vocab], not negative, sum above 0; need not be 1.
        u: [rows] float64 in [0, 1).

    Returns:
        [rows] int64; never a token of probability 0.
    """
    sums = chunk_sums(law)
    chunk, left = _invert(sums, u.double())
    values, tokens = chunk_at(law, chunk)
    repeats = functional.pad(tokens[:, 1:] == tokens[:, :-1], (1, 0), value=False)
    inside, _ = _invert(values.double().masked_fill(repeats, 0.0), left)
    return tokens.gather(1, inside[:, None])[:, 0]


def _invert(masses: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Which of masses [rows, n] each u [rows] falls in: [rows] int64; and how far into it: [0, 1)."""
    reached = masses.cumsum(-1)
    target = u[:, None] * reached[:, -1:]
    # A mass of 0 is ruled out by name: a parallel scan need not be monotone, and u * total may round up.
    positive = masses > 0
    hit = positive & (reached > target)
    last = masses.shape[-1] - 1 - positive.flip(-1).int().argmax(-1)
    index = torch.where(hit.any(-1), hit.int().argmax(-1), last)
    mass = masses.gather(1, index[:, None])[:, 0]
    before = reached.gather(1, index[:, None])[:, 0] - mass
    left = ((target[:, 0] - before) / mass).clamp(0.0, 1.0 - 2.0**-53)
    return index, left
