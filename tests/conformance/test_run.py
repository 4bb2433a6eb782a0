"""What is not offered is not passed; errors and exit status; the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conformance_double import MOST_DRAFTS, Double
from rich.console import Console

from pipeline.client.prompts import Prompt
from pipeline.conformance.check import FAILED, NOT_OFFERED, PASSED, Finding
from pipeline.conformance.deployment import Answer
from pipeline.conformance.facts import probe
from pipeline.conformance.greedy import GreedyCheck
from pipeline.conformance.log_probs import LogProbCheck
from pipeline.conformance.report import exit_status, print_report, write_json
from pipeline.conformance.run import all_checks, question
from pipeline.conformance.seeds import SeedCheck
from pipeline.errors import ServerError, StepError
from pipeline.orchestrator.request import GenerationRequest

PROMPTS = tuple(Prompt("text", text) for text in ("a cold winter", "the sea, the sand", "how to bake", "one, two"))


def test_facts() -> None:
    """Rules, the largest K, and refused options, in the deployment's words."""
    facts = probe(Double(refuses=("min_p", "min_tokens"), rules=("match",)))
    assert facts.rules == ("match",)
    assert facts.max_draft_len == MOST_DRAFTS
    assert facts.refused == {name: f"[INVALID_ARGUMENT] {name}: not offered" for name in ("min_p", "min_tokens")}
    assert facts.why_not("top_p", "min_p") == "[INVALID_ARGUMENT] min_p: not offered"


def test_without_speculation_nothing_of_it_passes() -> None:
    """K = 0 alone."""
    _, found = question(Double(max_draft_len=0), all_checks(quick=True), PROMPTS, True)
    speculative = [finding for finding in found if finding.part[0] in "abcf"]
    assert {finding.status for finding in speculative} == {NOT_OFFERED}


def test_refused_options_are_not_offered() -> None:
    """Each by its name; the rest is still shown."""
    double = Double(refuses=("return_log_probs", "repetition_penalty", "min_tokens", "stop_words"), rules=("token",))
    _, found = question(double, all_checks(quick=False), PROMPTS, True)
    missing = {finding.name for finding in found if finding.status == NOT_OFFERED}
    assert {"output_log_probs", "stop word", "min_tokens reached", "every K"} <= missing
    assert exit_status(found) == 0


def test_without_logits_a_greedy_difference_is_a_fault() -> None:
    """Nobody can say that it was a tie."""
    _, found = question(Double("greedy drift", teaches=False, promises=False), [GreedyCheck()], PROMPTS, True)
    assert any("its margin cannot be had" in finding.detail for finding in found if finding.status == FAILED)
    _, found = question(Double(teaches=False), [LogProbCheck()], PROMPTS, True)
    assert [finding.status for finding in found] == [NOT_OFFERED]


def test_an_unkept_promise_that_is_not_made() -> None:
    """Texts that do not repeat where reproducible is false: not offered, not failed."""
    _, found = question(Double("seed ignored"), [SeedCheck()], PROMPTS, True)
    repeated = [finding for finding in found if finding.name != "no seed"]
    assert {finding.status for finding in repeated} == {NOT_OFFERED}


class Failing(Double):
    """Refuses long answers."""

    error: Exception = StepError("out of memory")

    def ask(self, request: GenerationRequest) -> Answer:
        if request.max_tokens > 8:
            raise self.error
        return super().ask(request)


def test_a_request_that_fails_fails_its_part() -> None:
    """The others go on; a server that is gone ends the run."""
    _, found = question(Failing(), [GreedyCheck(), SeedCheck()], PROMPTS, True)
    assert (found[0].part, found[0].status) == ("a greedy", FAILED)
    assert "out of memory" in found[0].detail
    gone = Failing()
    gone.error = ServerError("no server")
    with pytest.raises(ServerError):
        question(gone, [GreedyCheck()], PROMPTS, True)


def test_another_tokenizer_teaches_nothing() -> None:
    """Its law would be another text's."""

    class Other(Double):
        def ask(self, request: GenerationRequest) -> Answer:
            answer = super().ask(request)
            return replace(answer, text=answer.text.upper())

    _, found = question(Other(), [LogProbCheck()], PROMPTS, True)
    assert "not the deployment's" in found[0].detail


def test_report(tmp_path: Path) -> None:
    """Table, JSON and exit status."""
    good, bad = Finding("a greedy", "K = 1", PASSED, "[8 of 8]"), Finding("b law", "top-k", FAILED, "TV 0.4", {"n": 3})
    absent = Finding("c coupled", "every K", NOT_OFFERED, "no speculation")
    assert [exit_status(found) for found in ([good], [good, absent], [absent], [good, bad], [])] == [0, 0, 1, 1, 1]
    console = Console(record=True, width=120)
    print_report(console, "conformance of x", [good, bad, absent], 1.0)
    text = console.export_text()
    assert "[8 of 8]" in text and "1 passed, 1 failed, 1 not offered" in text and "below 1e-06" in text
    facts = probe(Double())
    write_json(tmp_path / "a" / "report.json", "x", facts, [good, bad], 1.0)
    data = json.loads((tmp_path / "a" / "report.json").read_text())
    assert data["exit_status"] == 1 and data["findings"][1]["figures"] == {"n": 3}
    assert data["facts"]["max_draft_len"] == MOST_DRAFTS
