"""From a deployment spec, manifests and step models to an orchestrator."""

from __future__ import annotations

import time
from pathlib import Path

from pipeline.drafting.base import Drafter
from pipeline.drafting.hybrid import HybridDrafter
from pipeline.drafting.model import ModelDrafter
from pipeline.drafting.ngram import NgramDrafter
from pipeline.drafting.none import NoDrafter
from pipeline.engine.manifest import Manifest
from pipeline.engine.step import StepModel
from pipeline.errors import EngineError
from pipeline.orchestrator.admission import Admission
from pipeline.orchestrator.controllers import make_controllers
from pipeline.orchestrator.intake import TargetFacts
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.switch import SpeculationSwitch
from pipeline.orchestrator.trace.line import TRACE_VERSION, TraceStart
from pipeline.orchestrator.trace.writer import TraceWriter
from pipeline.orchestrator.verifier import StepVerifier
from pipeline.spec import DeploymentSpec
from pipeline.text.tokenizer import Tokenizer


def make_orchestrator(
    spec: DeploymentSpec,
    tokenizer: Tokenizer,
    target: StepModel,
    target_manifest: Manifest,
    draft: StepModel | None = None,
    draft_manifest: Manifest | None = None,
    switch_file: Path | None = None,
) -> Orchestrator:
    """Join the parts; the step models may be in this process or behind Triton.

    Args:
        switch_file: watched for `auto`, `off` or a K, beside what the spec starts with.

    Raises:
        EngineError: the spec's draft needs an engine that was not given.
        SpecError: the trace file cannot be opened.
    """
    drafter = _make_drafter(spec, draft, draft_manifest)
    pools = [target_manifest.limits] + ([draft_manifest.limits] if draft_manifest is not None else [])
    size = target_manifest.limits.tokens_per_block
    admission = Admission(min(limits.kv_tokens for limits in pools) // size, size, spec.limits.max_requests)
    return Orchestrator(
        tokenizer=tokenizer,
        target=TargetFacts(
            target_manifest.limits,
            target_manifest.capabilities,
            target_manifest.end_id,
            target_manifest.padded_vocab_size,
        ),
        verifier=StepVerifier(target, spec.deadlines.target_s, target_manifest.padded_vocab_size),
        drafter=drafter,
        controllers=make_controllers(
            spec.controller,
            target_manifest.limits.max_draft_len,
            target_manifest.cost,
            draft_manifest.cost if draft_manifest is not None else None,
        ),
        admission=admission,
        default_rule=spec.rule,
        burst=spec.controller.burst,
        queue=spec.queue,
        trace=_open_trace(spec, target_manifest, draft_manifest),
        switch=SpeculationSwitch(spec.speculation, target_manifest.limits.max_draft_len, switch_file),
        draft_ahead=spec.drafts_ahead,
    )


def _open_trace(spec: DeploymentSpec, target: Manifest, draft: Manifest | None) -> TraceWriter | None:
    if spec.trace is None:
        return None
    start = TraceStart(
        version=TRACE_VERSION,
        deployment=spec.name,
        controller=spec.controller.kind,
        max_draft_len=target.limits.max_draft_len,
        burst=spec.controller.burst,
        target_cost=target.cost,
        draft_cost=None if draft is None else draft.cost,
        time_s=time.time(),
    )
    return TraceWriter(spec.trace, start)


def _make_drafter(spec: DeploymentSpec, draft: StepModel | None, manifest: Manifest | None) -> Drafter:
    kind, ngram = spec.draft.kind, spec.draft.ngram
    if kind == "none":
        return NoDrafter()
    lookup = NgramDrafter(ngram.min_match, ngram.max_match)
    if kind == "ngram":
        return lookup
    if draft is None or manifest is None:
        raise EngineError(f"draft.kind = {kind} needs a draft engine")
    model = ModelDrafter(draft, manifest, spec.deadlines.draft_s, greedy=spec.draft.sampling == "greedy")
    return model if kind == "model" else HybridDrafter([lookup, model])
