"""Exports that perf_analyzer 2.51 and genai-perf 0.0.16 wrote of the demo deployment, read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.errors import ServerError
from pipeline.load.figures import LoadFigures
from pipeline.load.genai_perf import SUMMARY, read_summary
from pipeline.load.level import Level
from pipeline.load.profile import ProfiledRequest, acceptance_of, measure, read_profile
from pipeline.load.tool import LoadRun

RECORDED = Path(__file__).with_name("recorded")
EXPORT = RECORDED / "perf_analyzer.json"
LEVEL = Level("concurrency", 2)


def profiled(sent: int, *responses: tuple[int, int], drafted: int = 0, accepted: int = 0) -> ProfiledRequest:
    rounds = 2 if drafted else 0
    statistics = {
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "spec_rounds": rounds,
        "mean_acceptance_length": (accepted + rounds) / rounds if rounds else 0.0,
    }
    return ProfiledRequest(sent, responses, statistics)


def test_tokens_of_the_export_are_those_of_the_statistics() -> None:
    """One id is exported as a number, several as a list; what other outputs hold is not looked at."""
    requests = read_profile(EXPORT)
    assert [request.tokens for request in requests] == [request.statistics["committed_tokens"] for request in requests]
    assert all(request.tokens == 16 for request in requests)
    assert [len(request.responses) for request in requests] == [15, 11, 8]


def test_figures_by_hand() -> None:
    first = profiled(0, (10_000_000, 1), (30_000_000, 3), drafted=4, accepted=3)
    second = profiled(5_000_000, (25_000_000, 1), (65_000_000, 1), drafted=4, accepted=1)
    figures = measure("speculative", LEVEL, [first, second], {"target": 6.0})
    assert figures == LoadFigures(
        mode="speculative",
        level=LEVEL,
        requests=2,
        tokens=6,
        first_token_ms=15.0,
        first_token_p95_ms=pytest.approx(19.5),
        per_token_ms=pytest.approx((20 / 3 + 40) / 2),
        per_token_p95_ms=pytest.approx(20 / 3 + 0.95 * (40 - 20 / 3)),
        latency_ms=45.0,
        tokens_per_s=pytest.approx(6 / 0.065),
        requests_per_s=pytest.approx(2 / 0.065),
        acceptance=0.5,
        acceptance_length=2.0,
        calls={"target": 3.0},
    )


def test_nothing_drafted_is_no_acceptance() -> None:
    assert acceptance_of([profiled(0, (1, 1))]) == (None, None)
    assert measure("plain", LEVEL, [profiled(0, (1_000_000, 2))]).per_token_ms == 0.0


def test_an_answer_without_its_end_is_an_error(tmp_path: Path) -> None:
    export = json.loads(EXPORT.read_text())
    request = export["experiments"][0]["requests"][1]
    request["response_timestamps"].pop()
    request["response_outputs"].pop()
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(export))
    with pytest.raises(ServerError, match=r"1 of 3 requests in .* were not answered whole"):
        read_profile(path)


@pytest.mark.parametrize("text", ["", "{}", '{"experiments": [{"requests": [{}]}]}'])
def test_no_export_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ServerError, match="is no profile export of perf_analyzer"):
        read_profile(path)


def test_genai_perf_figures_are_its_own(tmp_path: Path) -> None:
    """Times and throughput from its summary; what was accepted from the answers beside it."""
    run = LoadRun("x:1", Level("rate", 4), "plain", ("a",) * 8, 12, 0.0, True, (), tmp_path)
    figures = read_summary(run, RECORDED / "genai_perf" / SUMMARY)
    assert (figures.requests, figures.tokens, figures.acceptance) == (8, 96, None)
    assert figures.first_token_ms == pytest.approx(612.25, abs=0.01)
    assert figures.per_token_ms == pytest.approx(50.76, abs=0.01)
    assert figures.tokens_per_s == pytest.approx(28.34, abs=0.01)
    # Our own reading of the same export agrees with what does not depend on how tokens are counted.
    own = measure("plain", run.level, read_profile(RECORDED / "genai_perf" / "profile_export.json"))
    assert own.first_token_ms == pytest.approx(figures.first_token_ms, rel=1e-3)
    assert own.latency_ms == pytest.approx(figures.latency_ms, rel=1e-3)
    assert own.tokens == figures.tokens
