"""The conformance command against the real loop over NVIDIA's interface: what it offers passes, the rest is named."""

from __future__ import annotations

import pytest

from pipeline.conformance.check import FAILED, PASSED
from pipeline.conformance.facts import BIASED_REPETITION
from pipeline.conformance.law import LawCheck
from pipeline.conformance.local import LocalDeployment
from pipeline.conformance.run import PROMPTS, all_checks, question

from . import nvidia_deployment
from .nvidia_deployment import Letters, Setting
from .nvidia_engine import Engine

VOCAB = 26
TARGET = Engine(VOCAB, 32, seed=5, max_draft_len=4, max_seq_len=520, max_input_len=500)
SETTING = Setting(TARGET, Engine(VOCAB, 28, seed=5, tilt=0.3, max_seq_len=516, max_input_len=500), kind="hybrid", k=3)


@pytest.fixture(autouse=True)
def any_character_is_a_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompts are English; the models know letters."""

    def encode(self: Letters, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) % (VOCAB - 1) for character in text]

    monkeypatch.setattr(Letters, "encode", encode)
    monkeypatch.setattr(nvidia_deployment, "END", VOCAB - 1)


def test_every_part_passes() -> None:
    target, _ = SETTING.models()
    deployment = LocalDeployment("stand-in", SETTING.orchestrator(), target, Letters())
    parts = [check for check in all_checks(quick=False) if not isinstance(check, LawCheck)]
    facts, found = question(deployment, [*parts, LawCheck(0.15)], PROMPTS, quick=True)
    assert facts.rules == ("token",) and facts.max_draft_len == 4
    assert set(facts.refused) == {"min_p", "return_log_probs", BIASED_REPETITION}
    assert {f"{finding.part}: {finding.name}": finding.detail for finding in found if finding.status == FAILED} == {}
    passed = {finding.part for finding in found if finding.status == PASSED}
    assert passed >= {"a greedy", "b law", "d seeds"}
    (everything,) = [finding for finding in found if finding.name.startswith("all options at once")]
    assert everything.status == PASSED
