"""Whether /dev/shm has room for the laws that travel between Triton models."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding
from pipeline.serving.server import ServerOptions

MIB = 1 << 20
STARTING = ServerOptions.shm_bytes  # that each model of the server begins with
LOGIT_BYTES = 4
COPIES = 2  # leaving the draft, entering the target
HOW = "Docker: --shm-size, compose: shm_size, Kubernetes: a memory volume on /dev/shm"


class SharedMemory(Check):
    """Sampled requests send K laws of vocabulary x 4 bytes each way."""

    name = "/dev/shm"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        spec, free = deployment.spec, deployment.machine.shm_free
        start = STARTING * (1 + len(deployment.models))
        shape = deployment.models["target"].shape
        laws = 0
        if shape is not None and spec.draft.uses_model:
            laws = COPIES * spec.limits.max_requests * spec.limits.max_draft_len * shape.vocab * LOGIT_BYTES
        needed = start + laws
        numbers = f"{(free or 0) / MIB:,.0f} MiB free, {needed / MIB:,.0f} MiB needed when all requests sample at once"
        if free is None:
            yield self.error("there is no /dev/shm", "Triton's models talk through it", HOW)
        elif free < start:
            yield self.error(numbers, f"the server's models begin with {start / MIB:,.0f} MiB", HOW)
        elif free < needed:
            yield self.warning(numbers, "sampled requests fail when it is full; greedy ones need none", HOW)
        else:
            yield self.ok(numbers)
