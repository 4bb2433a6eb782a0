"""Gumbel noise that a request's seed fixes once for all, and the choice that it makes from a law.

Rule "coupled" lets draft and target each take argmax over v of (log law(v) + g_v) with one noise g. With
E_v = exp(-g_v), which is exponentially distributed, that is argmin of E_v / law(v).

E = -log(1 - u), and the 64 bits of u are a hash of (seed, position, token id): nested rounds of SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), whose output function
is a well-mixed bijection of 64 bits. The first 16 bits of four tokens share one word, and a word of its own
gives each the rest: since E >= u, the first bits show for nearly every token that it cannot win, at a quarter
of the hashing. Two positions share noise only where their 64-bit keys lie closer than a vocabulary apart: a
chance of about 1e-14 for each pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.sampling.vocabulary import row_argmax

Words = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

BLOCK_ELEMENTS = 1 << 16
"""Numbers worked on at once on a CPU: what its second-level cache holds."""
SPARSE = 8
"""Where fewer than one token in so many is possible, only their noise is looked at."""

_GAMMA = 0x9E3779B97F4A7C15
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_REST = 0xD1B54A32D192ED03  # sets the words of the last 48 bits apart
_LANES, _LANE_BITS = 4, 16
_LARGEST = 1.0 - 2.0**-53
_SLACK = 1.0 + 2.0**-20  # above float32 rounding


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


def exponentials(keys: IntArray | int, ids: IntArray) -> FloatArray:
    """The noise E at some tokens.

    Args:
        keys: of `noise_keys`, [n] or one for all.
        ids: [n] token ids of the full vocabulary.

    Returns:
        [n] float64 above 0, exponentially distributed with mean 1. Near 0, where a rare token wins, they lie
        2**-64 apart.
    """
    words = np.array(keys, np.int64, ndmin=1).view(np.uint64)
    lane = ((ids % _LANES) * _LANE_BITS).astype(np.uint64)
    first = _mix(words + _steps(ids // _LANES)) >> lane
    rest = _mix(_mix(words + np.uint64(_REST)) + _steps(ids))
    bits = (first << np.uint64(64 - _LANE_BITS)) | (rest >> np.uint64(_LANE_BITS))
    exponential: FloatArray = -np.log1p(-np.minimum((bits + 0.5) * 2.0**-64, _LARGEST))
    return exponential


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
    rows, vocab = law.shape
    if law.device.type != "cpu":
        return choose_dense(law, keys, torch.arange(vocab, device=law.device) if ids is None else ids)
    if not rows:
        return keys.clone()
    numbers, key, likely = law.numpy(), keys.numpy(), row_argmax(law).numpy()
    names = np.arange(vocab) if ids is None else ids.numpy()
    # No token that can win scores more than the most probable one.
    search = _Search(names, ids is None, max(1, BLOCK_ELEMENTS // vocab), numbers.dtype)
    with np.errstate(divide="ignore", invalid="ignore"):  # laws with nothing possible
        bound = exponentials(key, names[likely]) / numbers[np.arange(rows), likely]
        row, token = np.divmod(search.candidates(numbers, key, bound), vocab)
    chosen = np.zeros(rows, np.int64)  # a row with nothing possible, or NaN, gets token 0
    if len(row):
        score = exponentials(key[row], names[token]) / numbers[row, token]
        begins = np.diff(row, prepend=-1) > 0
        best = np.minimum.reduceat(score, begins.nonzero()[0])[begins.cumsum() - 1]
        winners = (score == best).nonzero()[0][::-1]  # the first of equal ones is written last
        chosen[row[winners]] = token[winners]
    return torch.from_numpy(chosen)


def choose_dense(law: Tensor, keys: Tensor, ids: Tensor) -> Tensor:
    """`choose` for a device with many cores: the noise of every token is written out."""
    lane = ids % _LANES * _LANE_BITS
    first = (_mix_signed(keys[:, None] + ids // _LANES * _signed(_GAMMA)) >> lane) & ((1 << _LANE_BITS) - 1)
    rest = _mix_signed(_mix_signed(keys + _signed(_REST))[:, None] + ids * _signed(_GAMMA))
    rest = (rest >> _LANE_BITS) & ((1 << (64 - _LANE_BITS)) - 1)
    bits = first.double() * 2.0 ** (64 - _LANE_BITS) + rest.double()
    u = ((bits + 0.5) * 2.0**-64).clamp_(max=_LARGEST)
    # The largest law / E, not the least of its inverse: a law of 0 gives 0, never 0 / 0.
    return (law.double() / -torch.log1p(-u)).argmax(-1)


class _Search:
    """Finds the tokens that may win, a few rows at a time, in memory that it uses again and again.

    Args:
        ids: [vocab] token ids.
        whole: they are 0, 1, 2 ...
        rows: at a time.
        dtype: of the laws.
    """

    def __init__(self, ids: IntArray, whole: bool, rows: int, dtype: np.dtype[Any]) -> None:
        self._rows = rows
        self._steps = _steps(np.arange(-(-len(ids) // _LANES)) if whole else ids // _LANES)
        self._lanes = None if whole else ((ids % _LANES) * _LANE_BITS).astype(np.uint64)
        self._words, self._spare = np.empty((2, rows, len(self._steps)), np.uint64)
        self._limit, self._first = np.empty((2, rows, len(ids)), dtype)
        self._possible, self._lower = np.empty((2, rows, len(ids)), np.bool_)

    def candidates(self, law: npt.NDArray[Any], keys: IntArray, bound: FloatArray) -> IntArray:
        """[rows, vocab] laws, [rows] keys and least scores known -> [n] flat indices, ascending."""
        factor = (bound * (_SLACK * 2.0**_LANE_BITS)).astype(law.dtype)[:, None]
        found = []
        for start in range(0, len(law), self._rows):
            part = law[start : start + self._rows]
            n = len(part)
            possible = np.greater(part, 0, out=self._possible[:n])
            if SPARSE * np.count_nonzero(possible) >= part.size:
                limit = np.multiply(part, factor[start : start + n], out=self._limit[:n])
                possible &= np.less_equal(self._first_bits(keys[start : start + n]), limit, out=self._lower[:n])
            found.append(np.flatnonzero(possible) + start * law.shape[1])
        return np.concatenate(found)

    def _first_bits(self, keys: IntArray) -> npt.NDArray[Any]:
        """[n] keys -> [n, vocab]: the first 16 bits of each token's u, as a number."""
        n = len(keys)
        first: npt.NDArray[Any] = self._first[:n]
        words = np.add(keys.view(np.uint64)[:, None], self._steps, out=self._words[:n])
        _mix(words, self._spare[:n])
        if self._lanes is None:
            first[:] = words.astype("<u8", copy=False).view("<u2")[:, : first.shape[1]]
        else:
            words >>= self._lanes
            words &= np.uint64((1 << _LANE_BITS) - 1)
            first[:] = words
        return first


def _steps(ids: IntArray) -> Words:
    return ids.astype(np.uint64) * np.uint64(_GAMMA)


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


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
