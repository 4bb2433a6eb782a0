"""Coupled: draft and target choose by the same noise (Daliri, Musco and Suresh, arXiv 2408.07978)."""

from __future__ import annotations

from torch import Tensor

from pipeline.sampling.noise import choose
from pipeline.sampling.rules.base import AcceptanceRule, Proposal, Randomness, Verdict, compare


class CoupledRule(AcceptanceRule):
    """Commit the target's own choices, which a request's seed fixes; drafts are kept while they are the same.

    Exact for any draft that knows only what has been committed: each choice is a fresh draw from the target's
    law, because the noise of a position is used for no other decision. The text is the same whatever the
    draft and K, because they are not looked at. A draft that chooses by the same noise is kept with a
    probability of at least (1 - d) / (1 + d), d the total variation between the two laws.
    """

    name = "coupled"
    uses_q = False

    def decide(self, p: Tensor, proposal: Proposal, randomness: Randomness) -> Verdict:
        """See `AcceptanceRule.decide`."""
        assert randomness.noise is not None
        own = choose(p.flatten(0, 1), randomness.noise.flatten()).view(p.shape[:2])
        return compare(own, proposal)
