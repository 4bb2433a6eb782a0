"""Whether /dev/shm has room for the laws that travel between Triton models."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding
from pipeline.serving.server import ServerOptions
from pipeline.spec import DeploymentSpec

MIB = 1 << 20
STARTING = ServerOptions.shm_bytes  # that each model of the server begins with
LOGIT_BYTES = 4
HOW = "Docker: --shm-size, compose: shm_size, Kubernetes: a memory volume on /dev/shm"


class SharedMemory(Check):
    """Sampled requests send K laws of vocabulary x 4 bytes each way."""

    name = "/dev/shm"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        spec, free = deployment.spec, deployment.machine.shm_free
        start = STARTING * (1 + len(deployment.models))
        shape = deployment.models["target"].shape
        vocab = 0 if shape is None else shape.vocab
        laws = _copies(spec) * spec.limits.max_requests * spec.limits.max_draft_len * vocab * LOGIT_BYTES
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


def _copies(spec: DeploymentSpec) -> int:
    """How often a draft's laws lie in shared memory: leaving the draft, entering the target."""
    if spec.draft.uses_model:
        return 2
    # A TensorRT target is sent rows that are certain of one token: without them it would redraw after a mismatch.
    return 1 if spec.draft.kind == "ngram" and spec.engine == "tensorrt_llm" else 0
