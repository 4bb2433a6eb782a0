"""Whether /dev/shm has room for the laws that travel between Triton models."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding
from pipeline.serving.server_options import ServerOptions
from pipeline.serving.shared_memory_need import HOW, LawTraffic

MIB = 1 << 20
STARTING = ServerOptions.shm_bytes  # that each model of the server begins with


class SharedMemory(Check):
    """Sampled requests send K laws of vocabulary x 4 bytes each way."""

    name = "/dev/shm"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        spec, free = deployment.spec, deployment.machine.shm_free
        start = STARTING * (1 + len(deployment.models))
        shape = deployment.models["target"].shape
        vocab = 0 if shape is None else shape.vocab
        laws = LawTraffic.of(spec, vocab)
        needed = start + laws.size
        numbers = f"{(free or 0) / MIB:,.0f} MiB free, {needed / MIB:,.0f} MiB needed when all requests sample at once"
        if free is None:
            yield self.error("there is no /dev/shm", "Triton's models talk through it", HOW)
        elif free < start:
            yield self.error(numbers, f"the server's models begin with {start / MIB:,.0f} MiB", HOW)
        elif free < needed:
            yield self.error(numbers, f"the server refuses to start: the laws of drafts take {laws}", HOW)
        else:
            yield self.ok(numbers)
