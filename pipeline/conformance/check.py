"""What every check has: a name, findings, and the deployment it questions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.client.prompts import Prompt
from pipeline.conformance.deployment import Answer, Deployment
from pipeline.conformance.facts import Facts
from pipeline.conformance.teacher import Teacher, Unavailable
from pipeline.orchestrator.request import GenerationRequest

Status = Literal["passed", "failed", "not offered"]
PASSED: Status = "passed"
FAILED: Status = "failed"
NOT_OFFERED: Status = "not offered"

FALSE_ALARM = 1e-6
"""Largest probability that a run declares a fault of a deployment that has none."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        part: letter and name of the check.
        name: what was looked at.
        status: passed, failed, or not offered: the deployment promises nothing here, so nothing was shown.
        detail: for people: figures, or the first thing that went wrong.
        figures: for programs.
    """

    part: str
    name: str
    status: Status
    detail: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """A run of the command.

    Attributes:
        deployment, facts, teacher: what is questioned, what it offers, and its target's laws.
        pool: requests in flight.
        prompts: continued as they are, no chat template.
        quick: fewer prompts and option sets.
        tick: told of every answer.
    """

    deployment: Deployment
    facts: Facts
    teacher: Teacher | Unavailable
    pool: ThreadPoolExecutor
    prompts: tuple[Prompt, ...]
    quick: bool
    tick: Callable[[], None] = lambda: None

    def ask(self, requests: Sequence[GenerationRequest]) -> list[Answer]:
        """Answers in the order of the requests, as many in flight as the pool has threads.

        Raises:
            SpecDecodeError: the first one that failed.
        """

        def one(request: GenerationRequest) -> Answer:
            answer = self.deployment.ask(request)
            self.tick()
            return answer

        futures = [self.pool.submit(one, request) for request in requests]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()


class Check(ABC):
    """One part of conformance."""

    part: str

    @abstractmethod
    def run(self, context: Context) -> Iterator[Finding]:
        """Question the deployment.

        Raises:
            SpecDecodeError: it refused or failed a request that it should have answered.
        """

    def passed(self, name: str, detail: str, **figures: Any) -> Finding:
        return Finding(self.part, name, PASSED, detail, figures)

    def failed(self, name: str, detail: str, **figures: Any) -> Finding:
        return Finding(self.part, name, FAILED, detail, figures)

    def not_offered(self, name: str, detail: str, **figures: Any) -> Finding:
        return Finding(self.part, name, NOT_OFFERED, detail, figures)
