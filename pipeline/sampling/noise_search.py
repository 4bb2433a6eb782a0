"""The winner among the tokens of a law, by the noise of its position: a loop that numba compiles.

It is the definition in `noise`, token by token, except that a token whose first bits show that it cannot win is not
looked at any further.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

GAMMA = np.uint64(0x9E3779B97F4A7C15)
REST = np.uint64(0xD1B54A32D192ED03)  # sets the words of the last 48 bits apart
LANES, LANE_BITS = 4, 16
LARGEST = 1.0 - 2.0**-53

_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_TO_UNIT = 2.0**-64
_SLACK = 1.0 + 2.0**-20  # above float32 rounding
_BLOCK, _GLANCE = 4096, 64  # tokens whose first bits are made at once; tokens asked at once whether any may win
_SIGNATURES = [f"void({kind}[:, ::1], int64[::1], int64[::1], int64[::1])" for kind in ("float32", "float64")]


@njit(nogil=True, inline="always")
def mixed(word: Any) -> Any:
    """SplitMix64's output function."""
    word = (word ^ (word >> _SHIFTS[0])) * _FACTORS[0]
    word = (word ^ (word >> _SHIFTS[1])) * _FACTORS[1]
    return word ^ (word >> _SHIFTS[2])


@njit(nogil=True, inline="always")
def _first(key: Any, token: Any) -> Any:
    """The first 16 bits of a token's u."""
    lane = np.uint64(token % LANES * LANE_BITS)
    return (mixed(key + np.uint64(token // LANES) * GAMMA) >> lane) & np.uint64(0xFFFF)


@njit(nogil=True)
def _exponential(key: Any, token: Any) -> Any:
    rest = mixed(mixed(key + REST) + np.uint64(token) * GAMMA)
    bits = (_first(key, token) << np.uint64(64 - LANE_BITS)) | (rest >> np.uint64(LANE_BITS))
    u: Any = (np.float64(bits) + 0.5) * _TO_UNIT
    return -math.log1p(-min(u, LARGEST))


@njit(_SIGNATURES, nogil=True, cache=True, error_model="numpy")
def search(law: Any, keys: Any, ids: Any, chosen: Any) -> None:
    """chosen[row] = argmin over v of E_v / law[row, v], the first one on ties; 0 where nothing is possible.

    Args:
        law: [rows, vocab] float32 or float64, C order; at least one row.
        keys: [rows] int64, of `noise_keys`.
        ids: [vocab] int64: token ids of the law's columns; [0] where they are 0, 1, 2 ...
        chosen: [rows] int64: starts as the most probable token, which bounds what others must beat.
    """
    rows, vocab = law.shape
    whole = len(ids) == 0
    words = np.empty(_BLOCK // LANES, np.uint64)
    bits = words.view(np.uint16) if whole else np.empty(_BLOCK, np.uint16)
    for row in range(rows):
        key, best = np.uint64(keys[row]), chosen[row]
        mass = law[row, best]
        if not mass > 0:
            chosen[row] = 0
            continue
        least = _exponential(key, best if whole else ids[best]) / mass
        for first in range(0, vocab, _BLOCK):
            count = min(_BLOCK, vocab - first)
            part = law[row, first : first + count]
            if whole:
                for i in range((count + LANES - 1) // LANES):
                    words[i] = mixed(key + np.uint64(first // LANES + i) * GAMMA)
            else:
                for i in range(count):
                    bits[i] = _first(key, ids[first + i])
            # E >= u, and u is at least its first bits.
            limit = law.dtype.type(least * (_SLACK * 2.0**LANE_BITS))
            for start in range(0, count, _GLANCE):
                stop = min(start + _GLANCE, count)
                hits = np.int32(0)
                for i in range(start, stop):
                    mass = part[i]
                    hits += np.int32(mass > 0) & np.int32(np.float32(bits[i]) <= mass * limit)
                if hits:
                    for i in range(start, stop):
                        mass, token = part[i], first + i
                        if mass > 0 and np.float32(bits[i]) <= mass * limit:
                            score = _exponential(key, token if whole else ids[token]) / mass
                            if score < least or (score == least and token < best):
                                least, best = score, token
        chosen[row] = best
