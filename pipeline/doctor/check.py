"""One question about a deployment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding


class Check(ABC):
    """A check has a name and yields what it found; nothing found means it does not apply."""

    name: ClassVar[str]

    @abstractmethod
    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        """Look, without changing, downloading or starting anything."""

    def ok(self, what: str) -> Finding:
        return Finding(self.name, "ok", what)

    def warning(self, what: str, why: str, todo: str) -> Finding:
        return Finding(self.name, "warning", what, why, todo)

    def error(self, what: str, why: str, todo: str) -> Finding:
        return Finding(self.name, "error", what, why, todo)

    def not_checked(self, what: str, why: str, todo: str) -> Finding:
        return Finding(self.name, "not checked", what, why, todo)
