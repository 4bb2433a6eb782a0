"""Whether the draft is used at all, and whether it can pay."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding
from pipeline.planning.model_shape import ModelShape

LEAST_RATIO = 4.0  # parameters that a token of the target reads over those of a draft's


class DraftUse(Check):
    """A draft that is loaded and never asked, or named and never loaded."""

    name = "draft in use"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        spec = deployment.spec
        draft, controller, longest = spec.draft, spec.controller, spec.limits.max_draft_len
        found = False
        if not draft.uses_model and draft.model is not None:
            found = True
            yield self.warning(
                f"draft.model = {draft.model} is named, but draft.kind = {draft.kind} uses no model",
                "it is neither built nor loaded",
                "draft.kind: hybrid or model; or leave draft.model out",
            )
        if draft.kind == "none":
            found = True
            yield self.warning("draft.kind = none", "tokens are decoded plainly", "hybrid, model or ngram, if meant")
        elif longest == 0 or (controller.kind == "fixed" and controller.k == 0):
            found = True
            field = "limits.max_draft_len" if longest == 0 else "controller.k"
            yield self.warning(
                f"{field} = 0: K is always 0",
                "the draft takes memory and is never asked, unless a request sends num_draft_tokens",
                f"raise {field}, or draft.kind: none",
            )
        elif controller.kind != "goodput" and controller.k > longest:
            found = True
            yield self.warning(
                f"controller.k = {controller.k} is above limits.max_draft_len = {longest}",
                f"K is {longest} at most",
                "make them equal",
            )
        if not found:
            yield self.ok(f"draft.kind = {draft.kind}, K by {controller.kind}, {longest} at most")


class DraftSize(Check):
    """A draft nearly as large as its target costs more than it saves."""

    name = "draft size"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        shapes = dict(deployment.shapes())
        if "draft" not in shapes or "target" not in shapes:
            return
        head_tokens = deployment.spec.draft.head_tokens
        target, draft = _read_per_token(shapes["target"]), _read_per_token(shapes["draft"], head_tokens)
        numbers = f"a token reads {target / 1e6:,.0f} million parameters of the target, {draft / 1e6:,.0f} of the draft"
        if target / draft >= LEAST_RATIO:
            yield self.ok(numbers)
        else:
            yield self.warning(
                numbers,
                f"drafting takes time: below {LEAST_RATIO:g}:1 speculation hardly pays",
                "a smaller draft; `specdec plan` shows the break-even acceptance",
            )


def _read_per_token(shape: ModelShape, head_tokens: int | None = None) -> int:
    """Parameters of all layers and of the LM head, which may be cut to its frequent tokens."""
    head = shape.head if head_tokens is None else min(head_tokens, shape.vocab) * shape.hidden
    return shape.layers * shape.layer_products + head
