"""Caps K by what the whole deployment gets done: what one request gains may cost its neighbours more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pipeline.drafting.base import Offer
from pipeline.engine.manifest import CostTable
from pipeline.orchestrator.controllers.base import Burst, ControllerFactory, Decision, KController, Observation
from pipeline.orchestrator.controllers.costs import load_bucket

CAPS = (0, 1, 2, 4, 8, 16)  # on K, as far as they are below the largest K, which is the last one
ALONE = 1  # a request alone has no neighbours: its own prices are the deployment's
# Tokens per request in flight: of a trial, and between two rounds of trials (doubling while they change nothing).
TRIAL, FIRST_INTERVAL, LAST_INTERVAL = 12, 24, 1024
LEAST_REQUESTS = 8  # fewer have trials as long as so many: a handful of rounds says nothing
STOP_GAIN = 0.03  # plain decoding must get so much more done to become the cap
MOVE_GAIN = 0.08  # and another cap so much more: rates of neighbours differ by chance
ALARM = 0.05  # so far below what plain decoding got done, and trials begin at once
CLEAR = 1.2  # times plain decoding: trials may be rare soon
PATIENCE = 4  # intervals before the first trial where the tables speak against speculation
HOPE = 0.6  # acceptance that a load must pay with, by the tables, to begin with speculation
MEMORY = 1.0  # trials that all that was known of a level counts as, beside a new one


@dataclass
class _Rate:
    """Tokens per second of a request, in the rounds that began and ended under one cap."""

    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def value(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def fade(self, most: float) -> None:
        """Forget, where more than `most` tokens are remembered."""
        if self.tokens > most:
            self.seconds *= most / self.tokens
            self.tokens = most


@dataclass
class _Bucket:
    """One load: the level that is home, the level that is tried at present, and the levels still to try."""

    rates: list[_Rate]
    home: int
    level: int
    phase: int = 0
    measured: int = 0  # tokens of this phase
    window: _Rate = field(default_factory=_Rate)  # the latest rounds of this phase
    interval: int = FIRST_INTERVAL
    to_try: list[int] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)

    @property
    def at_home(self) -> bool:
        return self.level == self.home and not self.tried


class Governor:
    """Finds, for each load, the cap on K under which requests together get most done; no speculation is one of them.

    In a shared pass a request pays for its neighbours' drafts, and plain decoding looks slow because the others
    speculate: no request can tell from its own times. So all requests at a load follow one cap at a time, and the
    rates under different caps are compared. Shared by all requests of a deployment.

    Args:
        largest: K that the target can verify at most.
        begins_plain: loads at which plain decoding is home until trials say otherwise.
    """

    def __init__(self, largest: int, begins_plain: Callable[[int], bool] = lambda load: False) -> None:
        self._levels = (*(cap for cap in CAPS if cap < largest), largest)
        self._begins_plain = begins_plain
        self._lock = threading.Lock()
        self._buckets: dict[int, _Bucket] = {}
        self._phases = 0

    def cap(self, load: int) -> tuple[int, int]:
        """The largest K allowed at present, and the number of the phase that says so."""
        if load <= ALONE:
            return self._levels[-1], 0
        with self._lock:
            bucket = self._bucket(load)
            return self._levels[bucket.level], bucket.phase

    def add(self, phase: int, tokens: int, seconds: float, load: int) -> None:
        """Record a round that was decided in `phase`, not as a request's first one there."""
        with self._lock:
            bucket = self._bucket(load)
            if load <= ALONE or phase != bucket.phase:
                return
            for rate in (bucket.rates[bucket.level], bucket.window):
                rate.tokens += tokens
                rate.seconds += seconds
            bucket.measured += tokens
            requests = max(load, LEAST_REQUESTS)
            trial = requests * TRIAL
            length = requests * bucket.interval if bucket.at_home else trial
            if bucket.measured >= length or self._alarm(bucket, trial):
                self._next(bucket, trial)

    def _alarm(self, bucket: _Bucket, trial: int) -> bool:
        """Whether the home level, over as many tokens as a trial has, fell behind what plain decoding got done."""
        if not bucket.at_home or bucket.window.tokens < trial:
            return False
        window, bucket.window = bucket.window, _Rate()
        fell = bucket.home > 0 and window.value < (1 - ALARM) * bucket.rates[0].value
        if fell:
            bucket.rates[bucket.home] = window  # what was good before is no argument
        return fell

    def _next(self, bucket: _Bucket, trial: int) -> None:
        """The phase is over: try the next level, or settle."""
        if bucket.at_home:
            neighbours = {0, bucket.home - 1, bucket.home + 1} - {bucket.home}
            bucket.to_try = sorted(level for level in neighbours if 0 <= level < len(self._levels))
        else:
            bucket.tried.append(bucket.level)
        if bucket.to_try:
            bucket.level = bucket.to_try.pop()
        else:
            self._settle(bucket)
        bucket.rates[bucket.level].fade(MEMORY * trial)
        self._phases += 1
        bucket.phase, bucket.measured, bucket.window = self._phases, 0, _Rate()

    def _settle(self, bucket: _Bucket) -> None:
        def gain(level: int) -> float:
            needed = STOP_GAIN if level == 0 else MOVE_GAIN
            return bucket.rates[level].value - (1 + needed) * bucket.rates[bucket.home].value

        best = max(bucket.tried, key=gain, default=bucket.home)
        if gain(best) > 0:
            bucket.home, bucket.interval = best, FIRST_INTERVAL
        else:
            clear = bucket.rates[bucket.home].value > CLEAR * bucket.rates[0].value
            bucket.interval = min((4 if clear else 2) * bucket.interval, LAST_INTERVAL)
        bucket.level, bucket.tried = bucket.home, []

    def _bucket(self, load: int) -> _Bucket:
        found = self._buckets.get(load_bucket(load))
        if found is None:
            plain = self._begins_plain(load)
            home = 0 if plain else len(self._levels) - 1
            found = _Bucket([_Rate() for _ in self._levels], home, home)
            # The tables are no proof, but reason enough to let trials wait.
            found.interval = PATIENCE * FIRST_INTERVAL if plain else FIRST_INTERVAL
            self._buckets[load_bucket(load)] = found
        return found


def plain_by_tables(target: CostTable, draft: CostTable | None, largest: int) -> Callable[[int], bool]:
    """Whether plain decoding is faster for requests that all draft at once: a pass then has all their rows.

    Args:
        target, draft: seconds of a pass by its tokens.
        largest: K at most.
    """

    def plain(load: int) -> bool:
        committed, draft_s = 1.0, 0.0
        for k in range(1, largest + 1):
            committed += HOPE**k
            draft_s += draft.seconds(load) if draft is not None else 0.0
            if (draft_s + target.seconds(load * (k + 1))) / committed < target.seconds(load):
                return False
        return True

    return plain


class GovernedController(KController):
    """Another controller under the governor's cap."""

    def __init__(self, inner: KController, governor: Governor, burst: int) -> None:
        self._inner = inner
        self._governor = governor
        self._burst = Burst(burst)
        self._phase = 0
        self._settled = False

    def choose(self, offers: Sequence[Offer], remaining: int, load: int) -> Decision:
        cap, phase = self._governor.cap(load)
        # A first round under another cap shares its passes with rounds of the old one.
        self._settled, self._phase = phase == self._phase, phase
        if cap == 0 and offers:
            return self._burst.plain(remaining, "governor")
        self._burst.reset()
        capped = {replace(offer, max_k=min(offer.max_k, cap)): offer for offer in offers}
        decision = self._inner.choose(list(capped), remaining, load)
        # The drafter knows its offers as it made them.
        return decision if decision.offer is None else replace(decision, offer=capped[decision.offer])

    def observe(self, observation: Observation) -> None:
        times = observation.times
        if self._settled:
            seconds = times.draft_s + times.verify_s + times.overhead_s
            self._governor.add(self._phase, observation.computed, seconds, observation.load)
        self._inner.observe(observation)


class GovernedFactory(ControllerFactory):
    """Makes controllers that share one governor."""

    def __init__(
        self,
        inner: ControllerFactory,
        largest: int,
        burst: int,
        begins_plain: Callable[[int], bool] = lambda load: False,
    ) -> None:
        self._inner = inner
        self._governor = Governor(largest, begins_plain)
        self._burst = burst

    def start(self) -> GovernedController:
        return GovernedController(self._inner.start(), self._governor, self._burst)
