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

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.sampling.noise_search import GAMMA, LANE_BITS, LANES, LARGEST, REST, search
from pipeline.sampling.vocabulary import row_argmax

Words = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_GAMMA, _REST = int(GAMMA), int(REST)
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


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
    lane = ((ids % LANES) * LANE_BITS).astype(np.uint64)
    first = _mix(words + _steps(ids // LANES)) >> lane
    rest = _mix(_mix(words + np.uint64(_REST)) + _steps(ids))
    bits = (first << np.uint64(64 - LANE_BITS)) | (rest >> np.uint64(LANE_BITS))
    exponential: FloatArray = -np.log1p(-np.minimum((bits + 0.5) * 2.0**-64, LARGEST))
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
    # No token that can win scores more than the most probable one: the search starts there.
    chosen = row_argmax(law)
    names = keys.new_empty(0) if ids is None else ids
    numbers = law.contiguous() if law.dtype == torch.float64 else law.float().contiguous()
    search(numbers.numpy(), keys.contiguous().numpy(), names.contiguous().numpy(), chosen.numpy())
    return chosen


def choose_dense(law: Tensor, keys: Tensor, ids: Tensor) -> Tensor:
    """`choose` for a device with many cores: the noise of every token is written out."""
    lane = ids % LANES * LANE_BITS
    first = (_mix_signed(keys[:, None] + ids // LANES * _signed(_GAMMA)) >> lane) & ((1 << LANE_BITS) - 1)
    rest = _mix_signed(_mix_signed(keys + _signed(_REST))[:, None] + ids * _signed(_GAMMA))
    rest = (rest >> LANE_BITS) & ((1 << (64 - LANE_BITS)) - 1)
    bits = first.double() * 2.0 ** (64 - LANE_BITS) + rest.double()
    u = ((bits + 0.5) * 2.0**-64).clamp_(max=LARGEST)
    # The largest law / E, not the least of its inverse: a law of 0 gives 0, never 0 / 0.
    return (law.double() / -torch.log1p(-u)).argmax(-1)


def _steps(ids: IntArray) -> Words:
    return ids.astype(np.uint64) * np.uint64(_GAMMA)


def _mix(words: Words) -> Words:
    """SplitMix64's output function, in place: `words` must be the caller's own."""
    for shift, factor in _STEPS:
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(_LAST_SHIFT)
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
