"""Loads of a sweep, from what a user types."""

from __future__ import annotations

import pytest

from pipeline.errors import InvalidRequestError
from pipeline.load.level import Level, parse_levels


def test_levels_ascend_and_come_once() -> None:
    assert parse_levels("4, 1,4", "2.5,0.5") == [
        Level("concurrency", 1),
        Level("concurrency", 4),
        Level("rate", 0.5),
        Level("rate", 2.5),
    ]
    assert parse_levels("", "3") == [Level("rate", 3)]


@pytest.mark.parametrize(
    ("concurrency", "rates", "words"),
    [
        ("0", "", "concurrency = '0': must be whole numbers from 1 to 1024"),
        ("1.5", "", "concurrency = '1.5': must be whole numbers"),
        ("1,,2", "", "concurrency = '1,,2'"),
        ("2000", "", "concurrency = '2000'"),
        ("1", "nan", "rates = 'nan': must be numbers from 0.01 to 10000"),
        ("1", "-2", "rates = '-2'"),
        ("", "", "concurrency = '': one of concurrency and rates must name a load"),
    ],
)
def test_nonsense_is_named(concurrency: str, rates: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_levels(concurrency, rates)
    assert words in str(caught.value)
