"""Judging the drafts of a round as one block (Sun et al., "Block Verification", arXiv 2403.10444)."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from pipeline.sampling.rules.base import Proposal
from pipeline.sampling.rules.residual import ResidualRule, ratios
from pipeline.sampling.vocabulary import row_sums


class BlockRule(ResidualRule):
    """Judge the drafts as one block: keep the longest prefix that passes, even past one that did not.

    Never keeps fewer drafts in expectation than the token rule.
    """

    name = "block"

    def acceptance_probabilities(self, p: Tensor, proposal: Proposal) -> Tensor:
        """See `ResidualRule.acceptance_probabilities`.

        h_i = S_i / (S_i + 1 - w_i) with S_i = sum over v of max(w_i p_{i+1}(v) - q_{i+1}(v), 0), and h is w
        at a row's last draft. S_i + 1 - w_i = 0 means that the block so far and the next law agree with the
        draft's: h is 1.
        """
        w = self.weights(p, proposal)[:, 1:]  # after 1 .. K drafts
        h = w.clone()  # [rows, K]
        width = proposal.drafts.shape[1]
        if width > 1:
            left = self._residual_sums(p, proposal, w)
            whole = left + 1.0 - w[:, :-1]
            inner = torch.where(whole > 0, left / whole, 1.0)
            last = torch.arange(1, width, device=p.device) == proposal.lengths[:, None]
            h[:, :-1] = torch.where(last, w[:, :-1], inner)
        return h.masked_fill(~proposal.real, 0.0)

    def weights(self, p: Tensor, proposal: Proposal) -> Tensor:
        """See `ResidualRule.weights`: w_0 = 1, w_i = min(w_{i-1} p_i(x_i) / q_i(x_i), 1)."""
        ratio = ratios(p, proposal)
        w = torch.ones(ratio.shape[0], ratio.shape[1] + 1, dtype=torch.float64, device=p.device)
        for i in range(ratio.shape[1]):
            w[:, i + 1] = (w[:, i] * ratio[:, i]).clamp(max=1.0)
        return w

    def count(self, accepts: Tensor) -> Tensor:
        """See `ResidualRule.count`: up to the last one that passed."""
        positions = torch.arange(1, accepts.shape[1] + 1, device=accepts.device)
        passed = torch.where(accepts, positions, 0)
        return functional.pad(passed, (1, 0)).amax(-1)

    @staticmethod
    def _residual_sums(p: Tensor, proposal: Proposal, w: Tensor) -> Tensor:
        """S after 1 .. K - 1 drafts: [rows, K - 1] float64."""
        inner = w[:, :-1]
        if proposal.q is None:
            # One-hot q at x: w p(x) <= 1 = q(x), so the sum is w (1 - p(x)).
            return inner * (1.0 - proposal.at_drafts(p)[:, 1:])
        sums = torch.empty_like(inner)
        left = torch.empty_like(p[:, 0])
        for i in range(inner.shape[1]):
            torch.mul(p[:, i + 1], inner[:, i : i + 1].to(p.dtype), out=left)
            sums[:, i] = row_sums(left.sub_(proposal.q[:, i + 1]).clamp_(min=0.0))
        return sums
