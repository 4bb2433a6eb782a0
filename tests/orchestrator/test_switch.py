"""The deployment-wide switch: what it does to running requests, and what its file may hold."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import SpecError
from pipeline.orchestrator.controllers.fixed import FixedFactory
from pipeline.orchestrator.switch import AUTO, LOOK_S, OFF, SpeculationSwitch, parse_setting, write_setting

from .scripted import Rig, ask, make_rig, run

SCRIPT = "a script that is long enough for some rounds of speculation"


class Clock(SimpleNamespace):
    now = 0.0

    def __call__(self) -> float:
        return self.now


def switched(setting: int | str) -> Rig:
    return make_rig(SCRIPT, k=4, switch=SpeculationSwitch(setting, 8))


@pytest.mark.parametrize(
    ("setting", "own", "ks", "reason"),
    [
        (AUTO, None, {4}, "fixed"),
        (AUTO, 2, {2}, "request"),
        (OFF, None, {0}, "switched_off"),
        (OFF, 3, {0}, "switched_off"),
        (OFF, 0, {0}, "request"),
        (6, None, {6}, "switched"),
        (2, 5, {2}, "switched"),
        (5, 2, {2}, "request"),
        (0, 5, {0}, "switched_off"),
    ],
)
def test_what_requests_get(setting: int | str, own: int | None, ks: set[int], reason: str) -> None:
    """It decides for requests that leave K open, and lowers what others ask for; the text is the same."""
    rig = switched(setting)
    outcome = run(rig, ask(max_tokens=28, num_draft_tokens=own))
    assert outcome.text == SCRIPT[:28]
    middle = [chunk.round for chunk in outcome.chunks if chunk.round and chunk.round.index > 0][:-2]
    assert {record.drafted for record in middle} == ks and {record.reason for record in middle} == {reason}
    if ks == {0}:
        assert outcome.statistics.plain_decisions[reason] == len(middle) + 2
        assert rig.drafter.proposed == []  # type: ignore[attr-defined]


def test_off_decodes_in_bursts() -> None:
    """Off is a true bypass: several tokens per call of the target, which may compute ahead to the last but one."""
    rig = switched(OFF)
    run(rig, ask(max_tokens=20))
    assert [call.max_new_tokens for call in rig.target.calls] == [1, 2, 4, 8, 5]
    assert [call.continues for call in rig.target.calls] == [False, True, True, True, False]


def test_a_running_request_follows(tmp_path: Path) -> None:
    """Off, K and auto again in the middle of an answer, by the file; within one look."""
    clock, path = Clock(), tmp_path / "s"
    rig = make_rig(SCRIPT, k=4, switch=SpeculationSwitch(AUTO, 8, path, clock))
    ks = []
    for number, chunk in enumerate(rig.orchestrator.generate(ask(max_tokens=59))):
        assert chunk.round is not None
        ks.append(chunk.round.drafted)
        clock.now += LOOK_S
        if number in (2, 4, 6):
            write_setting(path, {2: OFF, 4: 1, 6: AUTO}[number])
    assert ks[:9] == [0, 4, 4, 0, 0, 1, 1, 4, 4]


def test_a_seed_that_was_overruled_is_not_called_reproducible() -> None:
    """A sampled request of fixed K promises its text again; not where the switch lowered K."""
    from pipeline.sampling.params import SamplingParams

    for setting, promised in ((AUTO, True), (8, True), (OFF, False), (1, False)):
        request = ask(num_draft_tokens=4, seed=1, sampling=SamplingParams(1.0), acceptance_rule="token")
        assert run(switched(setting), request).statistics.reproducible == promised


def test_the_file_is_looked_at_now_and_then(tmp_path: Path) -> None:
    """Not more often than every LOOK_S; where it is removed, what the deployment started with holds."""
    clock, path = Clock(), tmp_path / "s"
    switch = SpeculationSwitch(3, 8, path, clock)
    assert switch.k == 3
    write_setting(path, OFF)
    assert switch.k == 3
    clock.now = LOOK_S
    assert switch.k == 0
    path.unlink()
    assert switch.k == 0
    clock.now = 2 * LOOK_S
    assert switch.k == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"on", b"-1", b"9", b"1.5", b"\xff\xfe", b"off " * 100, "٣".encode()])
def test_a_bad_file_changes_nothing_and_is_said_once(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, path = Clock(), tmp_path / "s"
    switch = SpeculationSwitch(2, 8, path, clock)
    path.write_bytes(content)
    for _ in range(3):
        clock.now += LOOK_S
        assert switch.k == 2
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 64), st.integers(0, 64), st.sampled_from(["", " ", "\n"]))
def test_settings_are_read_as_written(k: int, largest: int, space: str) -> None:
    if k <= largest:
        assert parse_setting(f"{space}{k}{space}", largest) == k
    else:
        with pytest.raises(SpecError, match=f"a number up to max_draft_len = {largest}"):
            parse_setting(str(k), largest)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="speculation cannot be switched"):
        write_setting(tmp_path / "missing" / "s", OFF)


def test_controllers_go_on_learning_while_it_is_off() -> None:
    """The inner controller sees every round."""
    seen = []

    class Spy(FixedFactory):
        def start(self):  # type: ignore[no-untyped-def]
            made = super().start()
            made.observe = seen.append  # type: ignore[method-assign]
            return made

    run(make_rig(SCRIPT, controllers=Spy(4, 8), switch=SpeculationSwitch(OFF, 8)), ask(max_tokens=20))
    assert [observation.computed for observation in seen] == [2, 4, 8, 5]
