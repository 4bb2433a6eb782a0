"""What speculation pays: expected committed tokens per round over the time of the round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.planning.constants import DEFAULT, Constants
from pipeline.planning.gpus import Gpu
from pipeline.planning.placement import Placement
from pipeline.planning.roofline import pass_time

_BISECTIONS = 40


@dataclass(frozen=True)
class StepCosts:
    """Seconds of the steps of a round, all sequences of a batch together.

    Attributes:
        draft_s: one draft token.
        verify_s: a pass of the target over K drafts and one more token, by K; [0] is a plain step.
        overhead_s: of a round with drafts, outside both models.
    """

    draft_s: float
    verify_s: tuple[float, ...]
    overhead_s: float

    @property
    def plain_s(self) -> float:
        return self.verify_s[0]

    def round_s(self, k: int) -> float:
        """A round of K drafts; plain decoding is one call for all tokens and has no overhead."""
        return self.plain_s if k == 0 else k * self.draft_s + self.verify_s[k] + self.overhead_s


@dataclass(frozen=True)
class Outcome:
    """One K. `speedup` is over plain decoding of the same batch."""

    k: int
    committed: float  # expected tokens per round and sequence
    round_s: float
    tokens_s: float  # all sequences together
    speedup: float


@dataclass(frozen=True)
class Speculation:
    """One batch size.

    Attributes:
        ratio: time of a plain target step over the time of a draft step.
        break_even: least conditional acceptance at which some K >= 1 is no slower than plain decoding; None where
            none is, or there is no draft.
    """

    sequences: int
    acceptance: float
    ratio: float
    outcomes: tuple[Outcome, ...]  # K = 0, 1, ...
    break_even: float | None

    @property
    def plain(self) -> Outcome:
        return self.outcomes[0]

    @property
    def best(self) -> Outcome:
        return max(self.outcomes, key=lambda outcome: outcome.tokens_s)


def expected_committed(k: int, acceptance: float) -> float:
    """Expected tokens of a round: 1 + a + ... + a^K, the correction or bonus included.

    Args:
        acceptance: probability that a draft is accepted given that its round reached it, in [0, 1].
    """
    return sum(acceptance**i for i in range(k + 1))


def speculate(costs: StepCosts, sequences: int, acceptance: float) -> Speculation:
    """Compare every K that `costs` knows."""

    def outcome(k: int) -> Outcome:
        committed, seconds = expected_committed(k, acceptance), costs.round_s(k)
        return Outcome(k, committed, seconds, sequences * committed / seconds, committed * costs.plain_s / seconds)

    ratio = costs.plain_s / costs.draft_s if costs.draft_s else 0.0
    outcomes = tuple(outcome(k) for k in range(len(costs.verify_s)))
    return Speculation(sequences, acceptance, ratio, outcomes, break_even(costs))


def break_even(costs: StepCosts) -> float | None:
    """Least acceptance at which some K >= 1 is no slower than plain decoding, or None."""
    ks = range(1, len(costs.verify_s))

    def pays(acceptance: float) -> bool:
        return any(expected_committed(k, acceptance) * costs.plain_s >= costs.round_s(k) for k in ks)

    return least_acceptance(pays)


def acceptance_for(costs: StepCosts, k: int, seconds_per_token: float) -> float | None:
    """The acceptance at which rounds of K reach a time per token, or None if none does."""
    return least_acceptance(lambda a: costs.round_s(k) / expected_committed(k, a) <= seconds_per_token)


def least_acceptance(holds: Callable[[float], bool]) -> float | None:
    """Bisect for where a condition that grows with acceptance begins to hold."""
    if not holds(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def gpu_costs(
    target: Placement,
    draft: Placement | None,
    gpu: Gpu,
    sequences: int,
    context: int,
    max_k: int,
    constants: Constants = DEFAULT,
) -> StepCosts:
    """Costs by the roofline; without a draft model only K = 0 is known."""
    tokens = range(1, (max_k if draft is not None else 0) + 2)
    return StepCosts(
        draft_s=0.0 if draft is None else pass_time(draft, gpu, sequences, 1, context, constants).total_s,
        verify_s=tuple(pass_time(target, gpu, sequences, n, context, constants).total_s for n in tokens),
        overhead_s=constants.round_s,
    )
