"""Match: the target draws its own tokens, and drafts are kept while they are the same."""

from __future__ import annotations

from torch import Tensor

from pipeline.sampling.rules.base import AcceptanceRule, Proposal, Randomness, Verdict, compare
from pipeline.sampling.vocabulary import draw


class MatchRule(AcceptanceRule):
    """Commit the target's own draws: exact for any draft, which changes only how many come at once.

    The draw that differs is the one committed. Drawing again from the whole law would make the token's
    probability p (2 - p).
    """

    name = "match"
    uses_q = False

    def decide(self, p: Tensor, proposal: Proposal, randomness: Randomness) -> Verdict:
        """See `AcceptanceRule.decide`."""
        own = draw(p.flatten(0, 1), randomness.final.flatten()).view(randomness.final.shape)
        return compare(own, proposal)
