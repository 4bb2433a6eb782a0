"""Whether the server can have its ports."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding


class Ports(Check):
    """ports.http, ports.grpc and ports.metrics on 127.0.0.1."""

    name = "ports"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        busy, server = deployment.machine.busy_port, deployment.machine.served_by
        if busy is None:
            yield self.ok("the ports of the spec are free")
        elif server is not None:
            yield self.warning(
                f"{busy}: this spec is being served by process {server}",
                "a second server of it is refused",
                "`make stop` first, if a new start is meant",
            )
        else:
            yield self.error(busy, "the server would not start", "another port in `ports:`, or 0 for a free one")
