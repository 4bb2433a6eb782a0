"""Whether both models hold the sequences that the spec promises."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding


class ContextLengths(Check):
    """limits.max_seq_len against the positions that the models were trained on."""

    name = "context length"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        wanted = deployment.spec.limits.max_seq_len
        for role, shape in deployment.shapes():
            if wanted <= shape.max_positions:
                yield self.ok(f"{role}: limits.max_seq_len = {wanted:,} of {shape.max_positions:,} positions")
            elif role == "target":
                yield self.error(
                    f"limits.max_seq_len = {wanted:,} is above the target's {shape.max_positions:,} positions",
                    "text beyond the positions that a model knows is noise",
                    f"limits.max_seq_len: {shape.max_positions}",
                )
            else:
                yield self.warning(
                    f"limits.max_seq_len = {wanted:,} is above the draft's {shape.max_positions:,} positions",
                    f"beyond {shape.max_positions:,} tokens the model drafts nothing: text stays exact, at plain speed",
                    f"none, if most texts are shorter; else limits.max_seq_len: {shape.max_positions} or another draft",
                )


class SlidingWindow(Check):
    """Layers that see the last tokens only."""

    name = "sliding window"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        longest = deployment.spec.limits.max_seq_len
        for role, shape in deployment.shapes():
            if shape.sliding_window is not None and shape.sliding_window < longest:
                yield self.error(
                    f"{role}: a sliding window of {shape.sliding_window:,} tokens, limits.max_seq_len = {longest:,}",
                    "KV blocks that leave the window cannot be reused: every round would be a full prefill",
                    f"limits.max_seq_len: {shape.sliding_window}, or another model",
                )
