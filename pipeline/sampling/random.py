"""Random numbers of one call: a seed per call, and a counter-based stream of uniforms under it.

The generator is Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
Number n of a seed is a function of (seed, n) alone, so that nothing has to be remembered between calls and no
request can move another one's numbers.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Role = Literal["draft", "target", "ahead"]
ROLES: tuple[Role, ...] = ("draft", "target", "ahead")

SEED_BITS = 64
_SEED_MASK = (1 << SEED_BITS) - 1
_PER_COUNTER = 4  # numbers that Philox makes from one value of its counter
_DROPPED_BITS = np.uint64(11)  # 64 - 53: a float64 holds 53
_UNIT = 2.0**-53


class _Stream(threading.local):
    """One generator per thread: placing an existing one is five times cheaper than making one."""

    def __init__(self) -> None:
        self.generator = np.random.Philox(key=0)
        self.state: Any = self.generator.state
        self.state["buffer_pos"] = _PER_COUNTER  # all used up: the next number comes from a new block


_STREAM = _Stream()


def call_seed(request_seed: int, round_index: int, role: Role) -> int:
    """The seed of one step-model call: blake2b(request seed, round, role).

    Draft and target get different seeds in every round: with one for both, a draft token would be accepted by
    the very number that chose it. So do drafts made ahead: a round falls back on fresh ones where the first of them was
    wrong, and numbers that are known to have chosen wrongly are not random any more.

    Args:
        request_seed: any integer.
        round_index: the round within the request, from 0.
        role: "draft", "target", or "ahead": a draft for this round that was made during the one before.

    Returns:
        An integer in [0, 2**64).

    Raises:
        ValueError: the role is none of them.
    """
    if role not in ROLES:
        raise ValueError(f"role = {role!r}: must be one of {', '.join(ROLES)}")
    text = f"{request_seed}:{round_index}:{role}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=SEED_BITS // 8).digest(), "little")


def uniforms(seed: int, start: int, count: int) -> npt.NDArray[np.float64]:
    """Numbers start .. start + count - 1 of a seed.

    Args:
        seed: taken modulo 2**64.
        start: index of the first number, at least 0.
        count: how many, at least 0.

    Returns:
        [count] float64 in [0, 1), multiples of 2**-53; `uniforms(s, 0, 5)[3] == uniforms(s, 3, 1)[0]`.

    Raises:
        ValueError: start or count is negative.
    """
    if start < 0 or count < 0:
        raise ValueError(f"start = {start}, count = {count}: must not be negative")
    block, skipped = divmod(start, _PER_COUNTER)
    inner = _STREAM.state["state"]
    inner["key"][:] = (seed & _SEED_MASK, 0)
    inner["counter"][:] = (block, 0, 0, 0)
    _STREAM.generator.state = _STREAM.state
    # Raw words, not Generator.random: numpy promises the raw stream for ever, distributions only per release.
    raw: npt.NDArray[np.uint64] = _STREAM.generator.random_raw(skipped + count)
    numbers: npt.NDArray[np.float64] = (raw[skipped:] >> _DROPPED_BITS) * _UNIT
    return numbers


def fresh_seed() -> int:
    """A request seed from the operating system, for a request that brought none: in [0, 2**64)."""
    return secrets.randbits(SEED_BITS)
