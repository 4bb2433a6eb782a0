"""Choosing K: one small protocol, with a reason for every decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.drafting.base import Offer


@dataclass(frozen=True)
class Decision:
    """What the next round does.

    Attributes:
        offer: the draft to take, or None for plain decoding.
        k: draft tokens to propose; 0 without an offer.
        burst: plain tokens to decode where k is 0.
        reason: why, in a word or two that metrics can carry.
        goes_on: the next round will most likely be plain, too.
    """

    offer: Offer | None
    k: int
    burst: int
    reason: str
    goes_on: bool = False

    @classmethod
    def plain(cls, burst: int, reason: str, goes_on: bool = False) -> Decision:
        return cls(None, 0, burst, reason, goes_on)


@dataclass(frozen=True)
class RoundTimes:
    """Wall seconds of one round at the orchestrator."""

    draft_s: float
    verify_s: float
    overhead_s: float


@dataclass(frozen=True)
class Observation:
    """How a round went.

    Attributes:
        key: of the offer that was taken, or None for plain decoding.
        drafted, accepted: tokens verified and kept; equal counts are a censored observation.
        computed: tokens decided by the target in this round (K + 1 at most, or the burst).
        load: requests in flight.
        ahead: the draft was made during the round before: its seconds are no price of drafting.
    """

    key: str | None
    drafted: int
    accepted: int
    computed: int
    load: int
    times: RoundTimes
    ahead: bool = False


class KController(ABC):
    """Chooses K for one request."""

    @abstractmethod
    def choose(self, offers: Sequence[Offer], remaining: int, load: int) -> Decision:
        """Decide the next round.

        Args:
            offers: drafts that could be had, each capped already; may be empty.
            remaining: tokens the request may still commit, at least 1; a burst is at most this.
            load: requests in flight.
        """

    @abstractmethod
    def observe(self, observation: Observation) -> None:
        """Learn from a round. Not called for a round that prefilled or whose draft failed."""


class ControllerFactory(ABC):
    """A deployment's controller: makes one per request and may share what they learn."""

    @abstractmethod
    def start(self) -> KController:
        """Begin a request."""


FIRST_BURST = 2  # one token alone costs a whole call, and a longer burst may run past the next match


class Burst:
    """Plain tokens per call while K stays 0: 2, 4, 8 ... up to a bound, so that a stream has no long gap."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._next = min(FIRST_BURST, largest)

    def plain(self, remaining: int, reason: str) -> Decision:
        """Decode the next burst plainly; more of them will follow."""
        size = min(self._next, remaining)
        self._next = min(self._next * 2, self._largest)
        return Decision.plain(size, reason, goes_on=True)

    def reset(self) -> None:
        """Begin small again: speculation may pay soon."""
        self._next = min(FIRST_BURST, self._largest)
