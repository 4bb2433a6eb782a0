"""Contestants in turn: who decodes what when, and the ratios."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pipeline.bench.contest import Asked, Decode, Standings, hold
from pipeline.bench.llama_cpp import PLAIN, speculative_name
from pipeline.bench.transformers_decoders import plain_name
from pipeline.client.bench_local import OWN_PLAIN, OWN_SPECULATIVE, compared


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_everybody_decodes_every_prompt_and_the_warm_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    log: list[tuple[str, str]] = []

    def contestant(name: str, seconds: float) -> Decode:
        def decode(asked: Asked) -> int:
            log.append((name, asked.message))
            clock.now += 100.0 if asked.message == "warm-up" else seconds
            return 10

        return decode

    asked = [Asked(message, f"<{message}>", (1, 2)) for message in ("warm-up", "a", "b", "c")]
    said: list[str] = []
    standings = hold({"x": contestant("x", 1.0), "y": contestant("y", 2.0)}, asked, said.append)
    assert standings.speeds == {"x": (10.0, 10.0, 10.0), "y": (5.0, 5.0, 5.0)}
    assert sorted(log) == sorted((name, one.message) for name in "xy" for one in asked)
    first_of = [name for position, (name, _) in enumerate(log) if position % 2 == 0]
    assert first_of == ["x", "y", "x", "y"], "who begins alternates"
    assert len(said) == len(log)


def test_ratios_are_of_the_same_prompt() -> None:
    standings = Standings({"ours": (10.0, 20.0, 90.0), "theirs": (5.0, 40.0, 30.0)})
    ratio = standings.ratio("ours", "theirs")
    assert ratio.ratios == (2.0, 0.5, 3.0) and ratio.median == 2.0
    assert ratio.low == 0.5 and ratio.high == 3.0


def test_the_best_of_their_settings_is_taken(speeds: Callable[[float], tuple[float, ...]]) -> None:
    """Ours over the fastest assisted setting and over llama.cpp's fastest draft length, by geometric mean."""
    fast, slow = "transformers BF16 (lookup)", "transformers FP32 (draft)"
    standings = Standings(
        {
            OWN_PLAIN: speeds(60.0),
            OWN_SPECULATIVE: speeds(80.0),
            plain_name("FP32"): speeds(20.0),
            plain_name("BF16"): speeds(30.0),
            slow: speeds(10.0),
            fast: speeds(40.0),
            PLAIN: speeds(40.0),
            speculative_name(1): speeds(16.0),
            speculative_name(3): speeds(8.0),
        }
    )
    found = {(ratio.ours, ratio.theirs): ratio.median for ratio in compared(standings, [slow, fast])}
    assert found == pytest.approx(
        {
            (OWN_PLAIN, plain_name("FP32")): 3.0,
            (OWN_PLAIN, plain_name("BF16")): 2.0,
            (OWN_SPECULATIVE, fast): 2.0,
            (OWN_PLAIN, PLAIN): 1.5,
            (OWN_SPECULATIVE, PLAIN): 2.0,
            (OWN_SPECULATIVE, speculative_name(1)): 5.0,
        }
    )
    alone = Standings({name: standings.speeds[name] for name in (OWN_PLAIN, OWN_SPECULATIVE, PLAIN)})
    assert {ratio.theirs for ratio in compared(alone, [])} == {PLAIN}, "transformers did not take part"


@pytest.fixture
def speeds() -> Callable[[float], tuple[float, ...]]:
    """Speeds of three prompts that differ, whoever decodes them."""
    return lambda speed: (speed, 0.5 * speed, 2 * speed)
