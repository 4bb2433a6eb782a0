"""Every planted bug is caught by the part meant for it; a right deployment passes every part."""

from __future__ import annotations

import pytest
from conformance_double import Double

from pipeline.client.prompts import Prompt
from pipeline.conformance.check import FAILED, FALSE_ALARM, PASSED, Check, Finding
from pipeline.conformance.coupled import CoupledCheck
from pipeline.conformance.greedy import GreedyCheck
from pipeline.conformance.law import LawCheck
from pipeline.conformance.log_probs import LogProbCheck
from pipeline.conformance.option_sets import EVERYTHING, PLAIN, SETS, OptionSet
from pipeline.conformance.report import exit_status
from pipeline.conformance.run import all_checks, question
from pipeline.conformance.seeds import SeedCheck
from pipeline.conformance.stopping import StoppingCheck
from pipeline.sampling.params import SamplingParams

PROMPTS = tuple(Prompt("text", text) for text in ("a cold winter", "the sea, the sand", "how to bake", "one, two"))
BLOCK_BUGS = ("redraw", "raw q", "same uniform")


def findings(double: Double, *checks: Check, quick: bool = True) -> list[Finding]:
    return question(double, checks or all_checks(quick=False), PROMPTS, quick)[1]


def statuses(found: list[Finding]) -> dict[str, str]:
    return {f"{finding.part}: {finding.name}": finding.status for finding in found}


@pytest.mark.parametrize("log_law", [False, True], ids=["raw logits", "log laws"])
def test_a_right_deployment_passes_every_part(log_law: bool) -> None:
    """All parts, nothing left out."""
    found = findings(Double(log_law=log_law))
    assert {finding.status for finding in found if finding.part != "d seeds"} == {PASSED}, statuses(found)
    assert FAILED not in {finding.status for finding in found}
    assert len({finding.part for finding in found}) == 6
    assert exit_status(found) == 0
    (length,) = [f.figures for f in found if f.name == "length"]
    assert len(length["inside"]) >= 3 and length["last"]


HISTORY = OptionSet("history", SamplingParams(temperature=1.0, frequency_penalty=-2.0))
BUGS: list[tuple[str, type[Check]]] = [
    ("greedy drift", GreedyCheck),
    ("stale penalties", GreedyCheck),
    ("noise by round", CoupledCheck),
    ("seed ignored", CoupledCheck),
    ("false promise", SeedCheck),
    ("one seed for all", SeedCheck),
    ("log-probs behind the temperature", LogProbCheck),
    ("log-probs one step late", LogProbCheck),
    ("draft's log-probs", LogProbCheck),
    ("end not cut", StoppingCheck),
    ("stops at the block", StoppingCheck),
    ("one too many", StoppingCheck),
    ("counts the rest", StoppingCheck),
    ("min_tokens counts rounds", StoppingCheck),
    ("min_tokens ignored", StoppingCheck),
]


@pytest.mark.parametrize(("bug", "check"), BUGS, ids=[f"{check.part[0]}-{bug}" for bug, check in BUGS])
def test_a_planted_bug_is_caught(bug: str, check: type[Check]) -> None:
    """By the part meant for it, and the exit status says so."""
    found = findings(Double(bug), check())
    assert FAILED in {finding.status for finding in found}, statuses(found)
    assert exit_status(found) == 1


LAW_BUGS: list[tuple[str, str, OptionSet]] = [
    ("temperature", "token", PLAIN),
    ("temperature", "coupled", PLAIN),
    ("top-k off by one", "match", PLAIN),
    ("redraw", "match", PLAIN),
    ("raw q", "token", PLAIN),
    ("end withheld", "token", EVERYTHING),
    ("same uniform", "token", PLAIN),
    ("stale penalties", "token", HISTORY),
    ("stale penalties", "coupled", HISTORY),
    ("min_tokens ignored", "match", EVERYTHING),
]


@pytest.mark.parametrize("teaches", [True, False], ids=["taught", "paired"])
@pytest.mark.parametrize(("bug", "rule", "options"), LAW_BUGS, ids=[f"{bug}-{rule}" for bug, rule, _ in LAW_BUGS])
def test_a_wrong_law_is_caught(bug: str, rule: str, options: OptionSet, teaches: bool) -> None:
    """Against the teacher-forced law; and against plain decoding, where that is right."""
    if not teaches and bug not in BLOCK_BUGS:
        pytest.skip("plain decoding has the bug, too")
    double = Double(bug, teaches=teaches, rules=(rule,), noise=1.5)
    (finding,) = findings(double, LawCheck(0.06, sets=[options]))
    assert finding.status == FAILED, finding.detail
    bounds = [fit["bound"] for fit in finding.figures["confirmation"]]
    assert min(bounds) < FALSE_ALARM


@pytest.mark.parametrize("teaches", [True, False], ids=["taught", "paired"])
@pytest.mark.parametrize("rule", ["token", "coupled", "match"])
def test_right_laws_pass(rule: str, teaches: bool) -> None:
    """Every option set, and the total variation that is printed is the one that was aimed at."""
    sets = SETS if teaches else (PLAIN, EVERYTHING)
    found = findings(Double(teaches=teaches, rules=(rule,), noise=1.5), LawCheck(0.15, sets=sets))
    assert {finding.status for finding in found} == {PASSED}, [f.detail for f in found if f.status != PASSED]
    for finding in found:
        assert min(fit["detectable"] for fit in finding.figures["tests"] if fit["detectable"]) <= 0.151
