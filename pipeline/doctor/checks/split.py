"""Whether the models can be split over GPUs as the spec says."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding
from pipeline.planning.placement import Placement

FUSIBLE = ("LlamaForCausalLM", "Gemma2ForCausalLM")  # reduce_fusion of trtllm-build 1.2


class Split(Check):
    """tensor_parallel and pipeline_parallel against heads and layers."""

    name = "parallelism"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        spec = deployment.spec
        if spec.engine != "tensorrt_llm":
            return
        for role, shape in deployment.shapes():
            part = spec.step_model(role)
            tp, pp = part.tensor_parallel, part.pipeline_parallel
            reasons = Placement(shape, part.weights, tp, pp, part.device_ids).indivisible()
            for reason in reasons:
                yield self.error(f"{role}.{reason}", "the conversion stops there", "take a split that divides them")
            if pp > 1 and role == "target":
                yield self.warning(
                    f"target.pipeline_parallel = {pp}",
                    "NVIDIA documents verification of drafts for tensor parallelism only",
                    "pipeline_parallel: 1",
                )
            if not reasons:
                yield self.ok(f"{role}: tensor_parallel {tp} x pipeline_parallel {pp}")
        target = deployment.models["target"].shape
        useful = spec.target.tensor_parallel > 1 and (target is None or target.architecture in FUSIBLE)
        if spec.tensorrt_llm.reduce_fusion and not useful:
            yield self.warning(
                "tensorrt_llm.reduce_fusion: true has no effect here",
                "it needs tensor_parallel above 1 and a Llama or Gemma 2 target",
                "leave it out",
            )
