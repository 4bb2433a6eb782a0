"""What the bench makes of its pairs, of statistics and of counts."""

from __future__ import annotations

import random
import statistics
from itertools import islice
from typing import Any

import pytest

from pipeline.bench.acceptance import Acceptance
from pipeline.bench.load_point import Answered, BatchRun, LoadPoint, Pair, round_split
from pipeline.client.bench_concurrency import unique_prompts
from pipeline.client.cli_bench import parse_counts
from pipeline.client.prompts import load_prompts
from pipeline.client.ratios import bootstrap_interval, geomean
from pipeline.errors import InvalidRequestError


def told(drafted: int = 0, accepted: int = 0, split: tuple[float, float, float] = (1.0, 2.0, 1.0)) -> dict[str, Any]:
    shares = dict(zip(("draft_s", "verify_s", "overhead_s"), split, strict=True))
    return {"num_draft_tokens": drafted, "num_accepted_draft_tokens": accepted, **shares}


def run(tokens_per_s: float, first_token_s: float = 0.1, statistics_: dict[str, Any] | None = None) -> BatchRun:
    """Two requests of ten seconds."""
    tokens = int(10 * tokens_per_s)
    answers = (
        Answered("chat", tokens // 2, 10.0, first_token_s, statistics_),
        Answered("code", tokens - tokens // 2, 10.0, first_token_s, statistics_),
    )
    return BatchRun(answers, 10.0)


def test_a_point_holds_medians_of_the_pairs() -> None:
    pairs = [Pair(run(100, 0.2), run(100 * s, 0.3, told(10, 4))) for s in (0.5, 1.2, 1.3)]
    point = LoadPoint.of(8, 0.8, pairs, 50.0)
    assert point.speedup == pytest.approx(1.2) and point.low == pytest.approx(0.5) and point.high == pytest.approx(1.3)
    assert point.first_token == pytest.approx(1.5) and point.over_one == pytest.approx(2.0)
    assert point.first_token_low == point.first_token_high == pytest.approx(1.5)
    assert (point.plain_first_token_s, point.first_token_s) == pytest.approx((0.2, 0.3))
    assert point.acceptance == pytest.approx(0.4) and point.pairs == 3
    assert point.plain_token_s == pytest.approx((10 - 0.2) / 499)
    assert point.token_s == pytest.approx((10 - 0.3) / 599)
    assert point.round_split == pytest.approx({"draft": 0.25, "verify": 0.5, "overhead": 0.25})
    assert LoadPoint.of(1, 0.0, pairs, None).over_one == 1.0
    assert LoadPoint.of(4, 0.0, pairs, None).over_one is None, "one request at a time was not measured"


def test_a_load_that_drafted_nothing_has_no_acceptance() -> None:
    one = Answered("chat", 1, 1.0, 1.0, told())
    point = LoadPoint.of(1, 0.0, [Pair(BatchRun((one,), 1.0), BatchRun((one,), 1.0))], None)
    assert point.acceptance is None
    assert point.token_s is None, "no answer has a second token"
    assert round_split([]) == {}


def test_acceptance_by_position_counts_rounds() -> None:
    """By hand: of one request K = 3 three times (3, 1, 0 kept) and K = 1 once (kept); of another K = 2 (1 kept)."""
    first = {
        "num_draft_tokens": 10,
        "num_accepted_draft_tokens": 5,
        "histogram_by_draft_length": {"0": 4, "1": 1, "3": 3},
        "acceptance_histogram": [1, 2, 0, 1],
    }
    second = {
        "num_draft_tokens": 2,
        "num_accepted_draft_tokens": 1,
        "histogram_by_draft_length": {"2": 1},
        "acceptance_histogram": [0, 1, 0],
    }
    found = Acceptance.of([first, second])
    assert found.drafted_by_position == (5, 4, 3) and sum(found.drafted_by_position) == found.drafted == 12
    assert found.accepted_by_position == (4, 1, 1) and sum(found.accepted_by_position) == found.accepted == 6
    assert found.rate == 0.5
    nothing = {**second, "num_draft_tokens": 0, "num_accepted_draft_tokens": 0, "histogram_by_draft_length": {"0": 3}}
    nothing["acceptance_histogram"] = [0]
    assert Acceptance.of([nothing]) == Acceptance(0, 0, (), ()) and Acceptance.of([nothing]).rate is None


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    """200 samples of 31; a 95 % interval misses 10 on average. False alarm below 1e-7 at 30 by the binomial law."""
    generator = random.Random(3)
    missed = 0
    for _ in range(200):
        low, high = bootstrap_interval([generator.gauss(1.0, 0.1) for _ in range(31)], statistics.median, 400)
        missed += not low <= 1.0 <= high
    assert missed < 30


def test_twice_and_half_as_fast_is_as_fast() -> None:
    assert geomean([2.0, 0.5]) == pytest.approx(1.0) and geomean([4.0]) == pytest.approx(4.0)


def test_no_prompt_comes_twice() -> None:
    prompts = load_prompts()
    drawn = list(islice(unique_prompts(prompts), 5 * len(prompts)))
    assert len({prompt.text for prompt in drawn}) == len(drawn)
    assert {prompt.kind for prompt in drawn[: len(prompts)]} == {prompt.kind for prompt in prompts}


def test_counts_are_numbers_between_commas() -> None:
    assert parse_counts("concurrency", "16, 1,4,4") == [1, 4, 16]
    for text in ("", "0", "1,,2", "x", "2000", "-1"):
        with pytest.raises(InvalidRequestError, match="concurrency"):
            parse_counts("concurrency", text)
