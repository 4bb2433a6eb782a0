"""What the concurrency bench makes of its pairs."""

from __future__ import annotations

import random
import statistics
from itertools import islice

import pytest

from pipeline.client.bench_concurrency import BatchRun, LoadPoint, Pair, unique_prompts
from pipeline.client.cli_measure import parse_counts
from pipeline.client.prompts import load_prompts
from pipeline.client.ratios import bootstrap_interval, geomean
from pipeline.errors import InvalidRequestError


def run(tokens_per_s: float, first_token_s: float = 0.1, drafted: int = 0, accepted: int = 0) -> BatchRun:
    return BatchRun(int(10 * tokens_per_s), 10.0, first_token_s, drafted, accepted)


def test_a_point_holds_medians_of_the_pairs() -> None:
    pairs = [Pair(run(100, 0.2), run(100 * s, 0.3, 10, 4)) for s in (0.5, 1.2, 1.3)]
    point = LoadPoint.of(8, 0.8, pairs, 50.0)
    assert point.speedup == pytest.approx(1.2) and point.low == pytest.approx(0.5) and point.high == pytest.approx(1.3)
    assert point.first_token == pytest.approx(1.5) and point.over_one == pytest.approx(2.0)
    assert point.acceptance == pytest.approx(0.4) and point.pairs == 3
    assert LoadPoint.of(1, 0.0, pairs, None).over_one == 1.0


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
