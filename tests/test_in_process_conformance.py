"""The whole command against real engines, real KV caches and the real loop, in this process."""

from __future__ import annotations

from typing import cast

import in_process_support
import pytest
from in_process_support import LetterTokenizer, Setting, deploy

from pipeline.conformance.check import FAILED, PASSED
from pipeline.conformance.law import LawCheck
from pipeline.conformance.local import LocalDeployment
from pipeline.conformance.run import PROMPTS, all_checks, question
from pipeline.engine.step import StepModel

VOCAB = 26
SETTING = Setting(kind="hybrid", vocab=VOCAB, max_seq_len=512, kv_blocks=1024, sharpness=0.8, min_match=3)


@pytest.fixture(autouse=True)
def any_character_is_a_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompts are English; the models know letters."""

    def encode(self: LetterTokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) % (VOCAB - 1) for character in text]

    monkeypatch.setattr(in_process_support.LetterTokenizer, "encode", encode)


def test_every_part_passes() -> None:
    """In deterministic mode nothing is excused and everything is offered."""
    with deploy(SETTING) as running:
        target = cast(StepModel, running.target)
        deployment = LocalDeployment("tiny", running.orchestrator, target, LetterTokenizer(VOCAB))
        parts = [check for check in all_checks(quick=False) if not isinstance(check, LawCheck)]
        checks = [*parts, LawCheck(0.15)]
        facts, found = question(deployment, checks, PROMPTS, quick=True)
        running.check_integrity()
    assert facts.refused == {} and set(facts.rules) == {"block", "token", "coupled", "match"}
    wrong = {f"{finding.part}: {finding.name}": finding.detail for finding in found if finding.status == FAILED}
    assert wrong == {}
    (exact,) = [finding for finding in found if finding.name == "bit exact"]
    assert exact.status == PASSED
    assert {finding.part for finding in found if finding.status == PASSED} == {check.part for check in checks}
