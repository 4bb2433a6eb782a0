"""One run: find out what is offered, question it part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pipeline.client.prompts import Prompt
from pipeline.conformance.check import Check, Context, Finding
from pipeline.conformance.coupled import CoupledCheck
from pipeline.conformance.deployment import Deployment
from pipeline.conformance.facts import Facts, probe
from pipeline.conformance.greedy import GreedyCheck
from pipeline.conformance.law import LawCheck
from pipeline.conformance.log_probs import LogProbCheck
from pipeline.conformance.seeds import SeedCheck
from pipeline.conformance.stopping import StoppingCheck
from pipeline.conformance.teacher import find_teacher
from pipeline.errors import ServerError, SpecDecodeError

IN_FLIGHT = 32
PROMPTS = (
    Prompt("list", "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday,"),
    Prompt("story", "Once upon a time, a fox and an old clock maker lived in a small town by the sea."),
    Prompt("code", "def average(numbers):\n    total = 0\n    for number in numbers:\n"),
    Prompt("fact", "The three largest cities of France are Paris, Marseille and"),
    Prompt("letter", "Dear Sir or Madam,\nI am writing to you because"),
    Prompt("recipe", "Pancakes. Mix 200 g of flour, 2 eggs, 300 ml of milk and a pinch of salt. Then"),
)


def all_checks(quick: bool) -> tuple[Check, ...]:
    """The parts in order; a quick run leaves the log-probabilities out."""
    parts = (GreedyCheck(), LawCheck(), CoupledCheck(), SeedCheck(), LogProbCheck(), StoppingCheck())
    return tuple(part for part in parts if not (quick and isinstance(part, LogProbCheck)))


def question(
    deployment: Deployment,
    checks: Sequence[Check],
    prompts: Sequence[Prompt] = PROMPTS,
    quick: bool = False,
    begin: Callable[[str, int], None] = lambda part, number: None,
    tick: Callable[[], None] = lambda: None,
) -> tuple[Facts, list[Finding]]:
    """Run checks.

    Args:
        deployment: is questioned.
        checks: parts.
        prompts: texts to continue.
        quick: fewer prompts and option sets.
        begin: told which part begins, and its number.
        tick: told of every answer.

    Raises:
        SpecDecodeError: the deployment does not answer at all.
    """
    findings: list[Finding] = []
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        facts = probe(deployment)
        teacher = find_teacher(deployment, pool)
        context = Context(deployment, facts, teacher, pool, tuple(prompts), quick, tick)
        for number, check in enumerate(checks):
            begin(check.part, number)
            try:
                findings.extend(check.run(context))
            except ServerError:
                raise
            except SpecDecodeError as error:
                findings.append(check.failed("answers", f"a request that should be answered was not: {error}"))
    return facts, findings
