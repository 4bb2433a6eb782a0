"""What the loop tells a recorder: committed tokens only, every round, every way to end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import StepError
from pipeline.metrics import catalogue as metrics
from pipeline.metrics.catalogue import Metric
from pipeline.metrics.tally import Increment, Tally
from pipeline.orchestrator.recorder import OWN_TIMEOUT, TallyRecorder
from pipeline.orchestrator.statistics import StatisticsCollector

from .byte_tokenizer import END
from .scripted import Outcome, Rig, ask, make_rig, run

TEXT = list(b"the quick brown fox jumps over the lazy dog")


class Counts:
    """What a recorder counted in one go."""

    def __init__(self, increments: list[Increment]) -> None:
        self._amounts = {(item.series, item.labels): item.amount for item in increments}

    def total(self, metric: Metric, **labels: str) -> float:
        return self._amounts.get((metric.series[0 if metric.kind == "counter" else 2], tuple(labels.items())), 0)

    def by_label(self, metric: Metric) -> dict[str, float]:
        return {labels[0][1]: n for (name, labels), n in self._amounts.items() if name == metric.name}

    def seconds(self, metric: Metric) -> float:
        return self._amounts[metric.series[1], ()]


def recorded(rig: Rig, **wanted: object) -> tuple[Outcome, Counts]:
    tally = Tally()
    rig.orchestrator.recorder = TallyRecorder(tally)
    outcome = run(rig, ask(**wanted))
    rig.orchestrator.recorder.answer_ended(outcome.statistics)  # as the server does
    return outcome, Counts(tally.take())


@given(end=st.integers(0, 30), k=st.integers(0, 8), right=st.integers(0, 8))
def test_only_what_was_committed_is_counted(end: int, k: int, right: int) -> None:
    """The end token anywhere in a block: nothing behind it counts, wherever the draft was right."""
    outcome, counts = recorded(make_rig([*TEXT[:end], END, *TEXT], k=k, right=lambda index: right), max_tokens=25)
    stats = outcome.statistics
    assert counts.total(metrics.COMMITTED_TOKENS) == len(outcome.token_ids) == stats.committed_tokens
    assert counts.total(metrics.DRAFTS) == stats.spec_rounds
    assert counts.total(metrics.DRAFT_TOKENS) == stats.num_draft_tokens
    assert counts.total(metrics.ACCEPTED_TOKENS) == stats.num_accepted_draft_tokens <= stats.committed_tokens
    assert counts.by_label(metrics.DECISIONS) == stats.decisions
    assert counts.by_label(metrics.ROUNDS) == stats.rounds_by_source
    assert sum(counts.by_label(metrics.DRAFTED_PER_POS).values()) == stats.num_draft_tokens
    assert sum(counts.by_label(metrics.ACCEPTED_PER_POS).values()) == stats.num_accepted_draft_tokens
    assert counts.total(metrics.DRAFT_LENGTH) == counts.total(metrics.VERIFY_S) == stats.rounds
    assert counts.total(metrics.FIRST_TOKEN_S) == 1
    assert counts.total(metrics.TOKEN_S) == (stats.committed_tokens > 1)
    assert counts.by_label(metrics.ANSWERS) == {stats.finish_reason: 1}


def test_a_failing_draft_is_counted() -> None:
    outcome, counts = recorded(make_rig(TEXT, error=StepError("the draft died")))
    assert counts.total(metrics.DRAFT_FAILURES) == outcome.statistics.draft_failures == 1
    assert counts.by_label(metrics.DECISIONS)["draft_failed"] == 1


def test_time_to_first_token_includes_the_wait() -> None:
    outcome, counts = recorded(make_rig(TEXT), waited_s=3.0)
    assert counts.seconds(metrics.FIRST_TOKEN_S) == pytest.approx(3.0 + outcome.statistics.first_token_s)


def test_how_requests_end() -> None:
    tally = Tally()
    recorder = TallyRecorder(tally)
    statistics = StatisticsCollector(3, "token", 0, True).finish("cancelled", 0.0, 1.0)
    for code in (
        "INVALID_ARGUMENT",
        "UNAVAILABLE",
        "UNAVAILABLE",
        "CANCELLED",
        "INTERNAL",
        "DEADLINE_EXCEEDED",
        OWN_TIMEOUT,
    ):
        recorder.request_failed(code)
    recorder.answer_ended(statistics)
    recorder.answer_ended(replace(statistics, finish_reason="eos"))
    counts = Counts(tally.take())
    assert counts.by_label(metrics.REFUSALS) == {"INVALID_ARGUMENT": 1, "UNAVAILABLE": 2, "TIMEOUT": 1}
    assert counts.by_label(metrics.FAILURES) == {"INTERNAL": 1, "DEADLINE_EXCEEDED": 1}
    assert counts.total(metrics.CANCELLATIONS) == 2
    assert counts.by_label(metrics.ANSWERS) == {"cancelled": 1, "eos": 1}


def test_state_says_what_runs() -> None:
    rig = make_rig(TEXT)
    answer = rig.orchestrator.generate(ask())
    next(answer)
    assert rig.orchestrator.state().running == 1 and rig.orchestrator.state().draft_usable
    list(answer)
    rig.orchestrator.draft_health.failed()
    assert rig.orchestrator.state().running == 0 and not rig.orchestrator.state().draft_usable
