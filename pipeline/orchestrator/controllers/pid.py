"""Holds the accepted share of drafts at a set point with a PID loop; looks at no time."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.drafting.base import Offer
from pipeline.orchestrator.controllers.base import Burst, ControllerFactory, Decision, KController, Observation

# Gains in drafts per unit of error (accepted share minus set point, within -1 .. 1), per speculative round.
PROPORTIONAL = 2.0
INTEGRAL = 0.5
DERIVATIVE = 1.0
SMOOTHING = 0.7  # weight of the past in the measured share: one round of two drafts says little
FIRST_PROBE = 64  # plain tokens before K = 1 is tried again, doubling to LAST_PROBE while it fails
LAST_PROBE = 256


class PidController(KController):
    """More drafts while more of them are accepted than the set point asks for, fewer otherwise, none at last.

    K is the loop's output, rounded, within 0 and the largest K. The integral is held within the same bounds and does
    not move outwards while the output is at one (anti-windup): a long easy stretch is left as fast as a short one.

    Args:
        k: first K.
        largest: K never exceeds it.
        set_point: wanted share of accepted drafts, in (0, 1); a longer block has a smaller one.
        burst: plain tokens per call at most.
    """

    def __init__(self, k: int, largest: int, set_point: float, burst: int) -> None:
        self._largest = largest
        self._set_point = set_point
        self._burst = Burst(burst)
        self._integral = float(min(k, largest))
        self._output = self._integral
        self._share: float | None = None
        self._plain_tokens = 0
        self._probe_after = FIRST_PROBE
        self._probing = False

    @property
    def k(self) -> int:
        """K of the next round, where an offer allows it."""
        return round(self._output)

    def choose(self, offers: Sequence[Offer], remaining: int, load: int) -> Decision:
        if not offers:
            # One token only while speculation pays: the next round may have an offer again.
            return Decision.plain(1, "no_offer") if self.k else self._burst.plain(remaining, "no_offer")
        offer = offers[0]
        if self.k:
            self._burst.reset()
            return Decision(offer, min(self.k, offer.max_k), 0, "pid")
        if self._largest and self._plain_tokens >= self._probe_after:
            self._probing = True
            self._burst.reset()
            return Decision(offer, 1, 0, "probe")
        return self._burst.plain(remaining, "below_set_point")

    def observe(self, observation: Observation) -> None:
        if not observation.drafted:
            self._plain_tokens += observation.computed
            return
        share = observation.accepted / observation.drafted
        if self._probing:
            self._probing = False
            self._plain_tokens = 0
            if share:
                self._restart()
            else:
                self._probe_after = min(2 * self._probe_after, LAST_PROBE)
            return
        before = share if self._share is None else self._share
        self._share = SMOOTHING * before + (1 - SMOOTHING) * share
        self._step(self._share - self._set_point, self._share - before)
        if not self.k:
            self._plain_tokens = 0

    def _step(self, error: float, change: float) -> None:
        direct = PROPORTIONAL * error + DERIVATIVE * change
        wanted = self._integral + INTEGRAL * error
        output = wanted + direct
        # A bounded output hides what the integral does: it may only move back from the bound.
        if (output < self._largest or error < 0) and (output > 0 or error > 0):
            self._integral = min(max(wanted, 0.0), float(self._largest))
        self._output = min(max(self._integral + direct, 0.0), float(self._largest))

    def _restart(self) -> None:
        """A probe was accepted: begin at K = 1, and without the memory of what went before."""
        self._integral = self._output = 1.0
        self._share = self._set_point
        self._probe_after = FIRST_PROBE


class PidFactory(ControllerFactory):
    """Makes PID controllers."""

    def __init__(self, k: int, largest: int, set_point: float, burst: int) -> None:
        self._k = k
        self._largest = largest
        self._set_point = set_point
        self._burst = burst

    def start(self) -> PidController:
        return PidController(self._k, self._largest, self._set_point, self._burst)
