"""What rounds cost: the tables measured when the engines were built, corrected by what rounds really took."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from pipeline.engine.manifest import CostTable

MEMORY = 0.9  # weight of the past in a running mean
SETTLED = 3.0  # weight from which a mean resists outliers
STALL = 2.0  # a measurement counts as at most so many times the mean
TRUST = 4.0  # passes after which measurements outweigh the table
FIRST_CHECK, LAST_CHECK = 16, 256  # speculative rounds after which the price of plain decoding is out of date


@dataclass
class _Mean:
    """Exponentially forgetting mean with the weight of its evidence."""

    value: float = 0.0
    weight: float = 0.0

    def add(self, x: float, count: int = 1) -> None:
        """Take `count` measurements whose mean is x; a single stall may not shift what many have shown."""
        if self.weight >= SETTLED:
            x = min(x, STALL * self.value)
        kept = MEMORY**count
        added = (1.0 - kept) / (1.0 - MEMORY)
        self.weight = self.weight * kept + added
        self.value += (x - self.value) * added / self.weight

    def blend(self, prior: float, trust: float = TRUST) -> float:
        """The mean with a prior, which is forgotten as any old measurement is."""
        trust *= 1.0 - (1.0 - MEMORY) * self.weight
        return (self.weight * self.value + trust * prior) / (self.weight + trust)


@dataclass
class _Bucket:
    """Measurements at one load."""

    verify: dict[int, _Mean] = field(default_factory=dict)  # by K; 0: seconds per plain token
    draft: dict[tuple[str, int], _Mean] = field(default_factory=dict)
    verify_scale: _Mean = field(default_factory=_Mean)
    draft_scale: _Mean = field(default_factory=_Mean)
    overhead: _Mean = field(default_factory=_Mean)
    rounds_since_plain: int = 0
    check_after: int = FIRST_CHECK


class CostModel:
    """Seconds of each part of a round, by K and by load bucket. Shared by all requests of a deployment.

    A part that has not been measured at a load costs what the table says, times how wrong the table was for
    the parts that have been; so a machine that is slower today than at build time misleads no comparison.

    Args:
        target: seconds per pass of the target, by new tokens.
        draft: the same of the draft model, or None without one.
    """

    def __init__(self, target: CostTable, draft: CostTable | None) -> None:
        self._target = target
        self._draft = draft
        self._lock = threading.Lock()
        self._buckets: dict[int, _Bucket] = {}

    def verify_s(self, k: int, load: int) -> float:
        """Seconds to verify k drafts; k = 0: seconds of one plain token."""
        with self._lock:
            bucket = self._bucket(load)
            prior = self._target.seconds(k + 1) * bucket.verify_scale.blend(1.0, 1.0)
            return bucket.verify.get(k, _Mean()).blend(prior)

    def draft_s(self, source: str, k: int, load: int) -> float:
        """Seconds to draft k tokens."""
        with self._lock:
            bucket = self._bucket(load)
            prior = self._draft_prior(source, k) * bucket.draft_scale.blend(1.0, 1.0)
            return bucket.draft.get((source, k), _Mean()).blend(prior)

    def overhead_s(self, load: int) -> float:
        """Seconds of a round outside both engines."""
        with self._lock:
            return self._bucket(load).overhead.blend(0.0005)

    def plain_out_of_date(self, load: int) -> bool:
        """True after many speculative rounds and no plain token: what speculation is compared with is a guess."""
        with self._lock:
            bucket = self._bucket(load)
            return bucket.rounds_since_plain >= bucket.check_after

    def add_plain(self, tokens: int, verify_s: float, overhead_s: float, load: int) -> None:
        """Record a burst of plain decoding."""
        with self._lock:
            bucket = self._bucket(load)
            self._add_verify(bucket, 0, verify_s / tokens, tokens)
            bucket.overhead.add(overhead_s)
            if bucket.rounds_since_plain >= bucket.check_after:
                bucket.check_after = min(2 * bucket.check_after, LAST_CHECK)
            bucket.rounds_since_plain = 0

    def add_round(self, source: str, k: int, draft_s: float, verify_s: float, overhead_s: float, load: int) -> None:
        """Record a speculative round."""
        with self._lock:
            bucket = self._bucket(load)
            self._add_verify(bucket, k, verify_s)
            bucket.draft.setdefault((source, k), _Mean()).add(draft_s)
            prior = self._draft_prior(source, k)
            if prior > 0.0:
                bucket.draft_scale.add(draft_s / prior)
            bucket.overhead.add(overhead_s)
            bucket.rounds_since_plain += 1

    def _add_verify(self, bucket: _Bucket, k: int, seconds: float, count: int = 1) -> None:
        bucket.verify.setdefault(k, _Mean()).add(seconds, count)
        bucket.verify_scale.add(seconds / self._target.seconds(k + 1))

    def _draft_prior(self, source: str, k: int) -> float:
        if source == "ngram" or self._draft is None:
            return 0.0
        # The first pass takes in what the last round committed as well: about two tokens.
        return self._draft.seconds(2) + (k - 1) * self._draft.seconds(1)

    def _bucket(self, load: int) -> _Bucket:
        # 1, 2, 3-4, 5-8, 9-16, ...
        return self._buckets.setdefault((max(load, 1) - 1).bit_length(), _Bucket())
