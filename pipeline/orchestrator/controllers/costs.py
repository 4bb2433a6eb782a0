"""What rounds cost: the tables measured when the engines were built, corrected by what rounds really took."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from pipeline.engine.manifest import CostTable

SPEED_MEMORY = 0.8  # a machine changes its speed within seconds: weight of the past in the mean of its speed
SHAPE_MEMORY = 0.95  # what K drafts cost in terms of one token hardly changes
SHAPE_TRUST = 8.0  # passes after which measurements outweigh the table's shape
STALL = 2.0  # a measurement counts as at most so many times what was expected
FIRST_CHECK, LAST_CHECK = 16, 256  # speculative rounds after which the price of plain decoding is out of date
FIRST_OVERHEAD_S = 0.0005


class _Seconds(dict[int, float]):
    """A table's prices, each looked up once: a round asks for those of every K, under a lock."""

    def __init__(self, price: Callable[[int], float]) -> None:
        self._price = price

    def __missing__(self, count: int) -> float:
        self[count] = self._price(count)
        return self[count]


class _Mean:
    """Exponentially forgetting mean that starts from a prior."""

    def __init__(self, prior: float, trust: float, memory: float) -> None:
        self.value = prior
        self.weight = trust
        self._memory = memory

    def add(self, x: float, count: int = 1) -> None:
        """Take `count` measurements whose mean is x."""
        kept = self._memory**count
        added = (1.0 - kept) / (1.0 - self._memory)
        self.weight = self.weight * kept + added
        self.value += (x - self.value) * added / self.weight


@dataclass
class _Bucket:
    """What is known at one load, in terms of the tables.

    `speed` is how many times longer than the table everything takes at present; `verify` (by K) and `draft` (by
    source) are how wrong the table's shape is beside that. Each measurement moves the first fast and the second
    slowly: prices that were learnt at different times are compared at one speed of the machine.
    """

    speed: _Mean = field(default_factory=lambda: _Mean(1.0, 1.0, SPEED_MEMORY))
    verify: dict[int, _Mean] = field(default_factory=dict)
    draft: dict[str, _Mean] = field(default_factory=dict)
    overhead: _Mean = field(default_factory=lambda: _Mean(FIRST_OVERHEAD_S, 1.0, SHAPE_MEMORY))
    rounds_since_plain: int = 0
    check_after: int = FIRST_CHECK

    def normalise(self) -> None:
        """What all K have in common is the machine's speed, not the shape of a K that was never compared."""
        shapes = self.verify.values()
        common = sum(shape.value * shape.weight for shape in shapes) / sum(shape.weight for shape in shapes)
        for shape in (*shapes, *self.draft.values()):
            shape.value /= common
        self.speed.value *= common


class CostModel:
    """Seconds of each part of a round, by K and by load bucket. Shared by all requests of a deployment.

    Args:
        target: seconds per pass of the target, by new tokens.
        draft: the same of the draft model, or None without one.
    """

    def __init__(self, target: CostTable, draft: CostTable | None) -> None:
        self._target_s = _Seconds(target.seconds)
        self._model_draft_s = None if draft is None else _Seconds(partial(model_draft_s, draft))
        self._lock = threading.Lock()
        self._buckets: dict[int, _Bucket] = {}

    def verify_s(self, k: int, load: int) -> float:
        """Seconds to verify k drafts; k = 0: seconds of one plain token."""
        with self._lock:
            bucket = self._bucket(load)
            shape = bucket.verify[k].value if k in bucket.verify else 1.0
            return self._target_s[k + 1] * bucket.speed.value * shape

    def draft_s(self, source: str, k: int, load: int) -> float:
        """Seconds to draft k tokens."""
        with self._lock:
            bucket = self._bucket(load)
            shape = bucket.draft[source].value if source in bucket.draft else 1.0
            return self._draft_table(source, k) * bucket.speed.value * shape

    def rounds_s(self, source: str, largest: int, load: int, ready: bool = False) -> list[float]:
        """[largest] seconds of a whole round for K = 1 .. largest: its draft, unless it is ready, its verify and the
        rest."""
        with self._lock:
            bucket = self._bucket(load)
            speed, verify, overhead = bucket.speed.value, bucket.verify, bucket.overhead.value
            draft = bucket.draft[source].value if source in bucket.draft else 1.0
            if ready:
                draft = 0.0
            return [
                self._draft_table(source, k) * speed * draft
                + self._target_s[k + 1] * speed * (verify[k].value if k in verify else 1.0)
                + overhead
                for k in range(1, largest + 1)
            ]

    def overhead_s(self, load: int) -> float:
        """Seconds of a round outside both engines."""
        with self._lock:
            return self._bucket(load).overhead.value

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
            bucket.overhead.add(min(overhead_s, STALL * bucket.overhead.value))
            if bucket.rounds_since_plain >= bucket.check_after:
                bucket.check_after = min(2 * bucket.check_after, LAST_CHECK)
            bucket.rounds_since_plain = 0

    def add_round(
        self, source: str, k: int, draft_s: float | None, verify_s: float, overhead_s: float, load: int
    ) -> None:
        """Record a speculative round; draft_s None: nobody waited for the draft."""
        with self._lock:
            bucket = self._bucket(load)
            self._add_verify(bucket, k, verify_s)
            table = self._draft_table(source, k)
            if draft_s is not None and table > 0.0:
                shape = bucket.draft.setdefault(source, _Mean(1.0, SHAPE_TRUST, SHAPE_MEMORY))
                shape.add(min(draft_s / (table * bucket.speed.value), STALL * shape.value))
            bucket.overhead.add(min(overhead_s, STALL * bucket.overhead.value))
            bucket.rounds_since_plain += 1

    def _add_verify(self, bucket: _Bucket, k: int, seconds: float, count: int = 1) -> None:
        shape = bucket.verify.setdefault(k, _Mean(1.0, SHAPE_TRUST, SHAPE_MEMORY))
        # One stall may not shift what many passes have shown; a machine that stays slow is believed in a few.
        expected = self._target_s[k + 1] * bucket.speed.value * shape.value
        seconds = min(seconds, STALL * expected)
        bucket.speed.add(bucket.speed.value * seconds / expected, count)
        shape.add(seconds / (self._target_s[k + 1] * bucket.speed.value), count)
        bucket.normalise()

    def _draft_table(self, source: str, k: int) -> float:
        return 0.0 if source == "ngram" or self._model_draft_s is None else self._model_draft_s[k]

    def _bucket(self, load: int) -> _Bucket:
        number = load_bucket(load)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = _Bucket()
        return bucket


def load_bucket(load: int) -> int:
    """0, 1, 2, 3 ... for 1, 2, 3-4, 5-8 ... requests in flight."""
    return (max(load, 1) - 1).bit_length()


def model_draft_s(table: CostTable, k: int) -> float:
    """Seconds to draft k tokens with a model, by its table."""
    # The first pass takes in what the last round committed as well: about two tokens.
    return table.seconds(2) + (k - 1) * table.seconds(1)
