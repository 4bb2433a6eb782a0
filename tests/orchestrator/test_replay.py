"""Replays of simulated deployments: what is predicted is what running it gives, and what is recorded stays."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pipeline.client.cli import app
from pipeline.engine.manifest import CostTable
from pipeline.orchestrator.controllers.base import ControllerFactory
from pipeline.orchestrator.controllers.fixed import FixedFactory
from pipeline.orchestrator.controllers.heuristic import HeuristicFactory
from pipeline.orchestrator.trace.line import TRACE_VERSION, TraceRound, TraceStart
from pipeline.orchestrator.trace.reader import Trace
from pipeline.replay.outcomes import known_outcomes
from pipeline.replay.replay import Replay

from .simulation import BURST, LARGEST_K, World, draft_pass, goodput, simulate, table, target_pass

TOKENS = 8000


def start(target: Callable[[int], float] = target_pass) -> TraceStart:
    return TraceStart(TRACE_VERSION, "simulated", "any", LARGEST_K, BURST, table(target), table(draft_pass), 0.0)


def record(factory: ControllerFactory, world: World, tokens: int = TOKENS, seed: int = 0) -> Trace:
    answers: dict[str, list[TraceRound]] = {}
    for line in simulate(factory, world, tokens, seed).lines:
        answers.setdefault(line.request, []).append(line)
    return Trace(start(), tuple(map(tuple, answers.values())))


def fixed(k: int) -> FixedFactory:
    return FixedFactory(k, BURST)


def steady(acceptance: float, verify: Callable[[int], float] = target_pass) -> World:
    return World(lambda position: acceptance, verify, request_tokens=200)


WAVE = World(lambda position: 0.5 + 0.45 * math.sin(position / 40), request_tokens=200)
RIPPLE = World(lambda position: 0.5 + 0.45 * math.sin(position / 4), request_tokens=200)
STEEP = steady(0.6, lambda tokens: 0.02 * (1 + 0.2 * (tokens - 1)))  # not what the tables say


@pytest.mark.parametrize(
    "world", [steady(0.3), steady(0.85), WAVE, RIPPLE, STEEP], ids=["0.3", "0.85", "wave", "ripple", "steep"]
)
def test_a_long_k_predicts_every_shorter_one(world: World) -> None:
    """From a trace of K = 8: tokens/s of K = 0, 1, 2, 4, 8 and of the heuristic as running them gives, within 4 %."""
    replay = Replay(record(fixed(8), world))
    contenders = {str(k): fixed(k) for k in (0, 1, 2, 4, 8)} | {"heuristic": HeuristicFactory(4, LARGEST_K)}
    for name, factory in contenders.items():
        found = replay.run(name, factory)
        truth = simulate(factory, world, TOKENS, seed=7).seconds_per_token
        assert found.tokens_per_s * truth == pytest.approx(1.0, abs=0.04), name
        assert found.recorded_share > 0.9


@pytest.mark.parametrize("recorded", ["fixed 1", "fixed 4", "goodput"])
@pytest.mark.parametrize("world", [steady(0.6), steady(0.85), WAVE, STEEP], ids=["0.6", "0.85", "wave", "steep"])
def test_any_trace_predicts_longer_k_where_the_text_changes_slowly(world: World, recorded: str) -> None:
    """Estimated outcomes and prices beyond the recorded K: within 6 %; it is said how many are estimates."""
    factory = goodput() if recorded == "goodput" else fixed(int(recorded[-1]))
    replay = Replay(record(factory, world))
    for k in (0, 2, 4, 8):
        found = replay.run(str(k), fixed(k))
        truth = simulate(fixed(k), world, TOKENS, seed=7).seconds_per_token
        assert found.tokens_per_s * truth == pytest.approx(1.0, abs=0.06), k
    assert found.recorded_share < 0.97 and found.priced_share < 0.1  # K = 8 was never run there


def test_goodput_itself_is_predicted() -> None:
    """A controller that learns while it runs, from a trace of K = 4 and of itself, within 4 %."""
    for world in (steady(0.3), steady(0.7), WAVE):
        truth = simulate(goodput(), world, TOKENS, seed=7).seconds_per_token
        for recorded in (fixed(4), goodput()):
            found = Replay(record(recorded, world)).run("goodput", goodput())
            assert found.tokens_per_s * truth == pytest.approx(1.0, abs=0.04)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(k=st.integers(1, 8), acceptance=st.floats(0, 1), seed=st.integers(0, 99), length=st.integers(2, 300))
def test_the_recorded_controller_replays_as_it_was(k: int, acceptance: float, seed: int, length: int) -> None:
    """No estimate is needed: the same rounds, drafts and acceptance, and the recorded time, answer by answer."""
    world = World(lambda position: acceptance, request_tokens=length)
    trace = record(fixed(k), world, 1500, seed)
    replay = Replay(trace)
    found, was = replay.run("again", fixed(k)), replay.as_recorded()
    for name in ("tokens", "rounds", "spec_rounds", "drafted", "accepted", "tried", "decisions"):
        assert getattr(found, name) == getattr(was, name), name
    assert found.recorded_share == 1.0
    assert found.seconds == pytest.approx(was.seconds, rel=0.05)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(st.integers(1, 8), st.integers(1, 8), st.floats(0, 1), st.integers(0, 99))
def test_recorded_outcomes_are_never_contradicted(recorded: int, k: int, acceptance: float, seed: int) -> None:
    """Whatever is replayed, at every place that the trace tried the outcome is the recorded one, in any order."""
    world = World(lambda position: acceptance, request_tokens=100)
    replay = Replay(record(fixed(recorded), world, 400, seed), seed)
    first = replay.run("a", fixed(k))
    for answer in replay.answers:
        for position, kept in known_outcomes(answer.rounds).get("model", {}).items():
            assert answer.outcomes.kept("model", position) == kept
    assert replay.run("b", fixed(k)) == replace(first, name="b")


def test_prompts_and_failures_cost_no_round() -> None:
    """Rounds that were not observed price nothing; the draft's first use is charged to who speculates."""
    trace = record(fixed(4), steady(0.7), 1000)
    slow = tuple(
        (replace(rounds[0], draft_s=9.0, observed=False), *rounds[1:]) for rounds in trace.answers
    )  # fmt: skip
    usual, prefilled = Replay(trace), Replay(replace(trace, answers=slow))
    for k in (0, 4):
        extra = prefilled.run("", fixed(k)).seconds - usual.run("", fixed(k)).seconds
        assert extra == pytest.approx(9.0 * len(slow) if k else 0.0, rel=0.01, abs=0.2)


def test_a_look_up_offer_ends_where_it_ended() -> None:
    """An offer shorter than K could be is not stretched; the model's is, up to what remains."""
    trace = record(fixed(8), steady(0.9), 200)
    short = tuple(
        tuple(replace(line, offers=tuple(replace(o, max_k=min(3, o.max_k)) for o in line.offers)) for line in rounds)
        for rounds in trace.answers
    )
    assert Replay(replace(trace, answers=short)).run("", fixed(8)).mean_k <= 3
    assert Replay(trace).run("", fixed(8)).mean_k > 6


# --- the command -----------------------------------------------------------------------------------------------


def write(path: Path, trace: Trace) -> Path:
    lines = [trace.start.to_json(), *(line.to_json() for rounds in trace.answers for line in rounds)]
    path.write_text("\n".join(lines) + "\n")
    return path


def specdec(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["replay", *arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_the_command_compares_all_controllers(tmp_path: Path) -> None:
    """Table, notes and JSON agree with the library; plain is the yardstick."""
    trace = record(fixed(4), steady(0.7), 1500)
    file, out = write(tmp_path / "t.jsonl", trace), tmp_path / "out" / "r.json"
    status, output = specdec(str(file), "--json", str(out))
    assert status == 0
    report = json.loads(out.read_text())
    found = {row["name"]: row for row in report["controllers"]}
    names = ["goodput", "heuristic", "pid", *(f"fixed K = {k}" for k in (1, 2, 4, 8)), "plain"]
    assert list(found) == ["as recorded", *names]
    assert found["plain"]["over_plain"] == 1.0
    assert found["fixed K = 4"]["tokens_per_s"] == pytest.approx(found["as recorded"]["tokens_per_s"], rel=0.01)
    rows = {cells[1].strip(): cells for cells in (line.split("│") for line in output.splitlines()) if len(cells) > 2}
    for name in names:
        assert f"{found[name]['tokens_per_s']:.1f}" == rows[name][2].strip()
    for part in ("outcomes:", "prices:", "Offers where"):
        assert part in output
    one, _ = specdec(str(file), "--controller", "fixed", "--k", "3")[::-1]
    assert "fixed K = 3" in one and "plain" in one and "goodput" not in one


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--controller", "best"), "controller = 'best': must be one of goodput, heuristic, pid, fixed, plain"),
        (("--k", "9"), "k = 9: must be between 0 and 8, what the recorded target verifies"),
    ],
)
def test_bad_options_are_one_line(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    file = write(tmp_path / "t", record(fixed(1), steady(0.5), 100))
    assert specdec(str(file), *options) == (1, f"error: {message}\n")


def test_a_trace_of_plain_decoding_cannot_be_replayed(tmp_path: Path) -> None:
    trace = record(fixed(0), steady(0.5), 100)
    bare = tuple(tuple(replace(line, offers=()) for line in rounds) for rounds in trace.answers)
    status, output = specdec(str(write(tmp_path / "t", replace(trace, answers=bare))))
    assert status == 1 and "holds no round in which anything could be drafted" in output


def test_a_table_of_one_size_prices_every_k() -> None:
    """The least a manifest can say is enough to replay."""
    trace = record(fixed(4), steady(0.7), 1000)
    poor = replace(trace.start, target_cost=CostTable(context_tokens=1, seconds_by_tokens={1: 0.01}), draft_cost=None)
    replay = Replay(replace(trace, start=poor))
    assert replay.run("", fixed(4)).seconds == pytest.approx(replay.as_recorded().seconds, rel=0.03)
    assert replay.run("", fixed(8)).tokens_per_s > 0
