"""What every acceptance rule is given and gives back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Proposal:
    """What the draft proposed in one round of each row; rows may have different K.

    Attributes:
        drafts: [rows, K] int64; entries at and beyond a row's length are any token.
        lengths: [rows] int64, 0 .. K: drafts of each row.
        q: [rows, K, vocab] laws the drafts were drawn from; None where each is one-hot at its draft token.
    """

    drafts: Tensor
    lengths: Tensor
    q: Tensor | None = None

    @property
    def real(self) -> Tensor:
        """[rows, K] bool: True at the drafts that are there."""
        return torch.arange(self.drafts.shape[1], device=self.drafts.device) < self.lengths[:, None]

    def at_drafts(self, law: Tensor) -> Tensor:
        """Probability that law [rows, K or more, vocab] gives to each draft: [rows, K] float64."""
        width = self.drafts.shape[1]
        return law[:, :width].gather(2, self.drafts[:, :, None])[:, :, 0].double()


@dataclass(frozen=True, eq=False)
class Randomness:
    """Randomness of one round; no number serves two decisions. A rule looks at what it needs.

    Attributes:
        accept: [rows, K] float64 independent uniforms: whether to keep each draft.
        final: [rows, K + 1] float64 independent uniforms: the target's own token at each position.
        noise: [rows, K + 1] int64: keys of the noise at each position (`noise_keys`); for "coupled" alone.
    """

    accept: Tensor
    final: Tensor
    noise: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Verdict:
    """What one round decided.

    Attributes:
        accepted: [rows] int64: drafts kept, the first ones.
        tokens: [rows] int64: the correction, or the bonus where all drafts were kept.
    """

    accepted: Tensor
    tokens: Tensor


class AcceptanceRule(ABC):
    """A way to keep drafts such that what is committed follows the target's law exactly.

    Attributes:
        name: as in the `acceptance_rule` request parameter.
        uses_q: False where the draft's law changes nothing.
    """

    name: ClassVar[str]
    uses_q: ClassVar[bool]

    @abstractmethod
    def decide(self, p: Tensor, proposal: Proposal, randomness: Randomness) -> Verdict:
        """Decide one round of every row.

        Args:
            p: [rows, K + 1, vocab] the target's laws, each after the drafts before it; those beyond a row's
                own length are ignored.
            proposal: the drafts.
            randomness: one set of uniforms per row.
        """


def compare(own: Tensor, proposal: Proposal) -> Verdict:
    """Keep drafts while they equal the target's own tokens; the first own token that differs is committed.

    Args:
        own: [rows, K + 1] int64, the target's token at each position.
        proposal: the drafts; q is not looked at.
    """
    width = proposal.drafts.shape[1]
    equal = (own[:, :width] == proposal.drafts) & proposal.real
    accepted = first_rejection(equal)
    return Verdict(accepted, own.gather(1, accepted[:, None])[:, 0])


def first_rejection(accepts: Tensor) -> Tensor:
    """[rows, K] bool -> [rows] int64: how many are True before the first False."""
    return accepts.long().cumprod(-1).sum(-1)
