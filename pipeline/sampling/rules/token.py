"""Token-by-token acceptance (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318)."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.sampling.rules.base import Proposal, first_rejection
from pipeline.sampling.rules.residual import ResidualRule, ratios


class TokenRule(ResidualRule):
    """Keep x_i with probability min(1, p_i(x_i) / q_i(x_i)), up to the first rejection."""

    name = "token"

    def acceptance_probabilities(self, p: Tensor, proposal: Proposal) -> Tensor:
        """See `ResidualRule.acceptance_probabilities`."""
        return ratios(p, proposal).clamp(max=1.0).masked_fill(~proposal.real, 0.0)

    def weights(self, p: Tensor, proposal: Proposal) -> Tensor:
        """See `ResidualRule.weights`: 1 everywhere."""
        rows, width = proposal.drafts.shape
        return torch.ones(rows, width + 1, dtype=torch.float64, device=p.device)

    def count(self, accepts: Tensor) -> Tensor:
        """See `ResidualRule.count`: those before the first rejection."""
        return first_rejection(accepts)
