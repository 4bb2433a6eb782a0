"""Whether the plan's envelope fits the GPUs that are here or named, or this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding
from pipeline.errors import SpecDecodeError
from pipeline.planning.gpus import GPUS, Gpu, recognise
from pipeline.planning.layout import Layout, read_layout
from pipeline.planning.machine_plan import plan_machine
from pipeline.planning.plan import GpuPlan, Question, plan_on

WHY = "the server would stop while it loads, or admit no request"
ACTION = "`specdec plan` shows what takes the room: fewer bytes a weight, more GPUs, a shorter max_seq_len"


class Memory(Check):
    """Weights, KV pools, activations and laws against what there is, for one sequence of limits.max_seq_len."""

    name = "memory"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        spec = deployment.spec
        if not deployment.shapes_known:
            yield self.not_checked("a model's shape is not known", WHY, "see model folders")
            return
        question = Question(context=spec.limits.max_seq_len, batches=(1,))
        if spec.engine == "embedded":
            yield self._machine(deployment, question)
            return
        try:
            layout = read_layout(spec)
        except SpecDecodeError as error:
            yield self.not_checked(str(error), WHY, "see parallelism")
            return
        kind = deployment.named_gpu or self._seen(deployment, layout)
        if kind is None:
            yield self._anywhere(layout, question)
        else:
            yield self._on(plan_on(layout, kind, question), spec.limits.max_requests)

    def _machine(self, deployment: Deployment, question: Question) -> Finding:
        plan = plan_machine(deployment.spec, question)
        numbers = f"{plan.needed / 1e9:.2f} GB needed, {plan.available / 1e9:.2f} GB available"
        if plan.fits:
            return self.ok(numbers)
        return self.error(numbers, "the system would end the server", "fewer kv_blocks, or a smaller model")

    def _seen(self, deployment: Deployment, layout: Layout) -> Gpu | None:
        """The kind of the smallest GPU that the spec uses, with the memory that the driver reports."""
        used = {device for placement in layout.placements.values() for device in placement.devices}
        here = [gpu for gpu in deployment.machine.gpus if gpu.index in used]
        if not here:
            return None
        smallest = min(here, key=lambda gpu: gpu.memory)
        kind = recognise(smallest.name, smallest.memory)
        if kind is None:  # speed is not shown, and whether it has FP8 is a finding of its own
            bare = replace(GPUS[0], name=smallest.name, architecture=smallest.architecture)
            kind = replace(bare, flops_fp8=bare.flops_fp16)
        return replace(kind, memory=smallest.memory)

    def _on(self, plan: GpuPlan, max_requests: int) -> Finding:
        gpus = f"{plan.gpus} x {plan.gpu.name}"
        if plan.obstacle is not None:
            return self.error(f"{gpus}: {plan.obstacle}", WHY, ACTION)
        held = f"{gpus}: {plan.sequences} sequences of {plan.context:,} tokens at once"
        if plan.sequences >= max_requests:
            return self.ok(held)
        more = f", {plan.balanced_sequences} with pools of equal length" if plan.balanced_sequences else ""
        return self.warning(
            f"{held}, limits.max_requests = {max_requests}",
            "longer requests than the pools hold together wait for one another",
            f"none, if most requests are shorter; else `specdec plan` shows how to divide the memory{more}",
        )

    def _anywhere(self, layout: Layout, question: Question) -> Finding:
        fitting = [plan for gpu in GPUS if (plan := plan_on(layout, gpu, question)).fits]
        if not fitting:
            return self.error(f"{layout.gpus} of no GPU that is known hold this", WHY, ACTION)
        names = ", ".join(plan.gpu.name for plan in fitting)
        return self.not_checked(
            f"no GPU here; by the plan {layout.gpus} of {names} hold it",
            WHY,
            "run doctor on the GPU machine, or name its kind: --gpu NAME",
        )
