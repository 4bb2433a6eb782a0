"""Rules that keep drafts by probability and draw the correction from what the draft's law left uncovered."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from pipeline.sampling.rules.base import AcceptanceRule, Proposal, Randomness, Verdict
from pipeline.sampling.vocabulary import draw, row_sums


class ResidualRule(AcceptanceRule):
    """A rule given by acceptance probabilities h and by the weight w of p in the residual max(w p - q, 0)."""

    uses_q = True

    @abstractmethod
    def acceptance_probabilities(self, p: Tensor, proposal: Proposal) -> Tensor:
        """h of each draft: [rows, K] float64 in [0, 1], 0 at and beyond a row's length."""

    @abstractmethod
    def weights(self, p: Tensor, proposal: Proposal) -> Tensor:
        """w after 0 .. K drafts: [rows, K + 1] float64 in [0, 1]."""

    @abstractmethod
    def count(self, accepts: Tensor) -> Tensor:
        """Drafts kept, given u < h of each: [rows, K] bool -> [rows] int64."""

    def residual(self, p: Tensor, proposal: Proposal, accepted: Tensor) -> Tensor:
        """The law, up to a factor, of the token after the drafts kept.

        Args:
            p: [rows, K + 1, vocab].
            proposal: the drafts.
            accepted: [rows] int64, drafts kept.

        Returns:
            [rows, vocab] in p's precision: p itself where all drafts were kept or the residual sums to 0,
            else max(w p - q, 0).
        """
        rows = torch.arange(p.shape[0], device=p.device)
        own = p[rows, accepted]
        rejected = (accepted < proposal.lengths).nonzero()[:, 0]
        if rejected.numel() == 0:
            return own
        at = accepted[rejected]
        if proposal.q is None:
            # q is 1 at the draft and w p <= 1 there: what is left is p without it, whatever w.
            left = own[rejected].scatter_(1, proposal.drafts[rejected, at][:, None], 0.0)
        else:
            w = self.weights(p, proposal)[rejected, at].to(p.dtype)
            left = own[rejected].mul_(w[:, None]).sub_(proposal.q[rejected, at]).clamp_(min=0.0)
        empty = row_sums(left) <= 0.0
        own[rejected] = torch.where(empty[:, None], own[rejected], left)
        return own

    def decide(self, p: Tensor, proposal: Proposal, randomness: Randomness) -> Verdict:
        """See `AcceptanceRule.decide`."""
        accepted = self.count(randomness.accept < self.acceptance_probabilities(p, proposal))
        final = randomness.final.gather(1, accepted[:, None])[:, 0]
        return Verdict(accepted, draw(self.residual(p, proposal, accepted), final))


def ratios(p: Tensor, proposal: Proposal) -> Tensor:
    """p(x) / q(x) at each draft x: [rows, K] float64.

    0 where p(x) is 0, whatever q(x): no rule may keep a token that the target cannot produce.
    """
    top = proposal.at_drafts(p)
    bottom = torch.ones_like(top) if proposal.q is None else proposal.at_drafts(proposal.q)
    return torch.where(top > 0, top / bottom, 0.0)
