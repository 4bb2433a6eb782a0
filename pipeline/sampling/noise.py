"""Gumbel noise that a request's seed fixes once for all, and the choice that it makes from a law.

Rule "coupled" lets draft and target each take argmax over v of (log law(v) + g_v) with one noise g. With
E_v = exp(-g_v), which is exponentially distributed, that is argmin of E_v / law(v): the same choice, computed
without a logarithm for tokens that cannot win.

The noise of a token is a hash of (seed, position, token id): three nested rounds of SplitMix64 (Steele, Lea
and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), whose output function is a
well-mixed bijection of 64 bits. Two positions share noise only where their 64-bit keys lie closer than a
vocabulary apart: a chance of about 1e-14 for each pair.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

BLOCK_ELEMENTS = 1 << 16
"""Numbers worked on at once on a CPU: what its second-level cache holds."""

SPARSE = 8
"""Where fewer than one token in so many is possible, only theirs is the noise that is computed."""

_GAMMA = 0x9E3779B97F4A7C15
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_LARGEST = 1.0 - 2.0**-53
_SLACK = 1.0 + 2.0**-20  # above float32 rounding
_HIGH_HALF = int(sys.byteorder == "little")


def noise_keys(seeds: Sequence[int], positions: IntArray) -> IntArray:
    """What the noise at a position is made from.

    Args:
        seeds: one request seed per row, taken modulo 2**64.
        positions: [rows, n] absolute positions in the sequence: the first token of the prompt is at 0.

    Returns:
        [rows, n] int64, to be taken as 64 bits.
    """
    words = np.array([seed % (1 << 64) for seed in seeds], np.uint64) + np.uint64(_GAMMA)
    return _mix(_mix(words)[:, None] + _steps(positions + 1)).view(np.int64)


def exponentials(key: int, ids: IntArray) -> FloatArray:
    """The noise E of one position at some tokens: [n] float64, above 0, exponentially distributed, mean 1.

    Args:
        key: of the position.
        ids: [n] token ids of the full vocabulary.
    """
    return _exponential(_mix(np.uint64(key % (1 << 64)) + _steps(ids)))


def choose(law: Tensor, keys: Tensor, ids: Tensor | None = None) -> Tensor:
    """One token from each law, by the noise of its position.

    Args:
        law: [rows, vocab], not negative, sum above 0; need not be 1.
        keys: [rows] int64, of `noise_keys`.
        ids: [vocab] int64 token ids of the full vocabulary, where the law is over a part of it.

    Returns:
        [rows] int64, an index into the law; never a token of probability 0. It depends on the row's own law
        and key alone.
    """
    if ids is None:
        ids = torch.arange(law.shape[-1], device=law.device)
    if law.device.type != "cpu":
        return choose_dense(law, keys, ids)
    steps, count = _steps(ids.numpy()), max(1, BLOCK_ELEMENTS // law.shape[-1])
    scratch = [np.empty((count, law.shape[-1]), np.uint64) for _ in range(2)]
    words = keys.numpy().view(np.uint64)
    blocks = range(0, len(law), count)
    parts = [_choose_block(law[i : i + count].numpy(), words[i : i + count], steps, scratch) for i in blocks]
    return torch.from_numpy(np.concatenate(parts)) if parts else keys.clone()


def choose_dense(law: Tensor, keys: Tensor, ids: Tensor) -> Tensor:
    """`choose` for a device with many cores: the noise of every token is written out."""
    words = _mix_signed(keys[:, None] + ids * _signed(_GAMMA))
    top = ((words >> 11) & ((1 << 53) - 1)).double()
    rest = (words & ((1 << 11) - 1)).double()
    u = ((top * 2.0**11 + (rest + 0.5)) * 2.0**-64).clamp_(max=_LARGEST)
    # The largest law / E, not the least of its inverse: a law of 0 gives 0, never 0 / 0.
    return (law.double() / -torch.log1p(-u)).argmax(-1)


def _steps(ids: IntArray) -> Words:
    return ids.astype(np.uint64) * np.uint64(_GAMMA)


def _choose_block(law: npt.NDArray[Any], keys: Words, steps: Words, scratch: list[Words]) -> IntArray:
    """[n, vocab] laws, [n] keys -> [n] choices.

    E >= u, so where the most probable token scores E / law = bound, no token with u > bound * law can have the
    least. The first 32 bits of u decide that for nearly all.
    """
    rows, possible = np.arange(len(law)), law > 0
    if SPARSE * np.count_nonzero(possible) < law.size:
        row, token = np.nonzero(possible)
        words = _mix(keys[row] + steps[token])
    else:
        words, spare = (buffer[: len(law)] for buffer in scratch)
        np.add(keys[:, None], steps, out=words)
        _mix(words, spare)
        likely = law.argmax(-1)
        bound = _exponential(words[rows, likely]) / law[rows, likely]
        limit = law * (bound * (_SLACK * 2.0**32)).astype(law.dtype)[:, None]
        row, token = np.nonzero((_high(words) <= limit) & possible)
        words = words[row, token]
    score = _exponential(words) / law[row, token]
    chosen = np.zeros(len(law), np.int64)  # a row with nothing possible, or NaN, gets token 0
    begins = np.diff(row, prepend=-1) > 0
    if len(row):
        best = np.minimum.reduceat(score, begins.nonzero()[0])[begins.cumsum() - 1]
        winners = (score == best).nonzero()[0][::-1]  # the first of equal ones is written last
        chosen[row[winners]] = token[winners]
    return chosen


def _mix(words: Words, spare: Words | None = None) -> Words:
    """SplitMix64's output function, in place: `words` must be the caller's own, `spare` is overwritten."""
    spare = np.empty_like(words) if spare is None else spare
    for shift, factor in _STEPS:
        np.right_shift(words, np.uint64(shift), out=spare)
        words ^= spare
        words *= np.uint64(factor)
    np.right_shift(words, np.uint64(_LAST_SHIFT), out=spare)
    words ^= spare
    return words


def _mix_signed(words: Tensor) -> Tensor:
    """The same bits in torch, which has no unsigned arithmetic."""
    for shift, factor in _STEPS:
        words ^= (words >> shift) & ((1 << (64 - shift)) - 1)
        words *= _signed(factor)
    words ^= (words >> _LAST_SHIFT) & ((1 << (64 - _LAST_SHIFT)) - 1)
    return words


def _high(words: Words) -> npt.NDArray[np.float32]:
    """The first 32 bits, as a number."""
    high: npt.NDArray[np.float32] = words.view(np.uint32)[:, _HIGH_HALF::2].astype(np.float32)
    return high


def _exponential(words: Words) -> FloatArray:
    """-log(1 - u), u of all 64 bits: near 0, where a rare token wins, the numbers lie 2**-64 apart."""
    u = np.minimum((words + 0.5) * 2.0**-64, _LARGEST)
    exponential: FloatArray = -np.log1p(-u)
    return exponential


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
