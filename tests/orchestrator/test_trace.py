"""The recorded trace: what it says is what happened, and nothing that befalls its file reaches a request."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.drafting.base import Offer
from pipeline.engine.manifest import CostTable
from pipeline.errors import SpecError, StepError
from pipeline.orchestrator.trace.line import TRACE_VERSION, TraceGap, TraceRound, TraceStart
from pipeline.orchestrator.trace.reader import read_trace
from pipeline.orchestrator.trace.writer import TraceWriter, check_trace_path

from .scripted import ask, eventually, make_rig, run

COSTS = CostTable(context_tokens=1, seconds_by_tokens={1: 0.01, 4: 0.02})
START = TraceStart(TRACE_VERSION, "test", "fixed", 8, 8, COSTS, COSTS, 1.5)
ROUND = TraceRound(
    request="a", client_id="", round=1, position=1, remaining=9, offers=(Offer("model", "model", 8),), k=2, burst=0,
    key="model", reason="fixed", draft_ids=(5, 6), drafted=2, accepted=1, computed=2, committed=2, load=1,
    observed=True, draft_s=0.1, verify_s=0.2, overhead_s=0.3, time_s=4.0,
)  # fmt: skip


def test_a_trace_says_what_the_rounds_were(tmp_path: Path) -> None:
    """Against the records that clients are sent, two answers of a client's request; file read back from disk."""
    writer = TraceWriter(tmp_path / "trace.jsonl", START)
    rig = make_rig("the script that is followed", trace=writer, right=lambda index: index % 4)
    request = ask(max_tokens=24, request_id="mine", num_return_sequences=2)
    chunks = list(rig.orchestrator.generate(request))
    rig.orchestrator.close()
    trace = read_trace(tmp_path / "trace.jsonl")
    assert trace.start == START and (trace.dropped, trace.unreadable, writer.dropped) == (0, 0, 0)
    assert len(trace.answers) == 2
    sent = [line for rounds in trace.answers for line in rounds]
    records = [chunk.round for chunk in chunks if chunk.round is not None]
    assert len(sent) == len(records) > 10
    position = 0
    for line, record in zip(sent, records, strict=True):
        position = 0 if record.index == 0 else position
        assert (line.client_id, line.round, line.position) == ("mine", record.index, position)
        assert line.remaining == 24 - position
        assert (line.drafted, line.committed, line.reason) == (record.drafted, record.committed, record.reason)
        assert (line.draft_s, line.verify_s, line.overhead_s) == (record.draft_s, record.verify_s, record.overhead_s)
        assert len(line.draft_ids) == line.k and line.source == (record.source if record.drafted else None)
        if record.index:
            assert line.k == 0 or line.offers == (Offer("model", "model", min(8, line.remaining - 1)),)
            assert line.accepted == min(line.k, record.index % 4)
        # Round 0 takes in the prompt at the target, round 1 at the draft.
        assert line.observed == (record.index > 1)
        position += record.committed


def test_a_failed_draft_is_recorded(tmp_path: Path) -> None:
    """The round counts for nothing, and says that the draft failed."""
    writer = TraceWriter(tmp_path / "trace.jsonl", START)
    run(make_rig("text", trace=writer, error=StepError("gone")))
    writer.close()
    ((_, failed, *_),) = read_trace(tmp_path / "trace.jsonl").answers
    assert (failed.reason, failed.k, failed.key, failed.draft_ids, failed.observed) == (
        "draft_failed",
        4,
        None,
        (),
        False,
    )


@settings(derandomize=True, deadline=None, max_examples=50)
@given(line=st.builds(
    replace, st.just(ROUND), client_id=st.text(), position=st.integers(0, 1 << 40), key=st.none() | st.text(),
    draft_ids=st.lists(st.integers(0, 1 << 31)).map(tuple), verify_s=st.floats(0, 1e9), reason=st.text(),
    offers=st.lists(st.builds(Offer, st.text(), st.text(), st.integers(0, 64))).map(tuple), observed=st.booleans(),
))  # fmt: skip
def test_lines_come_back_as_they_were(line: TraceRound, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("trace") / "t"
    path.write_text(START.to_json() + "\n" + line.to_json() + "\n")
    assert read_trace(path).answers == ((line,),)


def test_a_full_disk_harms_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """Every write fails: texts are the same, losses are counted, one warning is logged."""
    plain = run(make_rig("the script"))
    with caplog.at_level(logging.WARNING):
        writer = TraceWriter(Path("/dev/full"), START)
        traced = run(make_rig("the script", trace=writer))
        eventually(lambda: writer.dropped == 1 + traced.statistics.rounds)
        run(make_rig("the script", trace=writer))
        writer.close()
    assert traced.text == plain.text
    assert [record.message for record in caplog.records if "No space left" in record.message] == [
        "trace /dev/full cannot be written: [Errno 28] No space left on device; rounds go on without it"
    ]


def test_a_closed_trace_harms_no_request(tmp_path: Path) -> None:
    """Rounds after the end are dropped; closing twice does nothing."""
    writer = TraceWriter(tmp_path / "t", START)
    writer.close()
    writer.close()
    outcome = run(make_rig("the script", trace=writer))
    assert writer.dropped == outcome.statistics.rounds
    assert (tmp_path / "t").read_text() == START.to_json() + "\n"


def test_a_slow_disk_loses_lines_and_says_so(tmp_path: Path) -> None:
    """The queue is bounded: `put` never waits, and the next line that is written tells how many are missing."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)  # a reader that does not read: writing blocks when the pipe is full
    writer = TraceWriter(pipe, START, queue_lines=4)
    wide = replace(ROUND, draft_ids=tuple(range(100_000, 140_000)))  # more than a pipe holds
    put = 0
    while writer.dropped < 10:
        writer.put(wide)
        put += 1
    text = b""

    def read_until(rounds: int) -> None:
        nonlocal text
        while text.count(b'"kind": "round"') < rounds or not text.endswith(b"\n"):
            text += os.read(end, 1 << 16)

    read_until(put - 10)
    writer.put(ROUND)
    read_until(put - 10 + 1)
    writer.close()
    os.close(end)
    lines = [json.loads(line) for line in text.decode().splitlines()]
    assert sum(line["dropped"] for line in lines if line["kind"] == "gap") == 10 == writer.dropped


def test_a_file_that_was_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """Half a line, a gap, blank lines, a second start."""
    path = tmp_path / "t"
    second = replace(START, deployment="later")
    lines = [START.to_json(), ROUND.to_json(), "", TraceGap(3).to_json(), second.to_json(), ROUND.to_json()[:50]]
    path.write_text("\n".join(lines))
    trace = read_trace(path)
    assert (trace.start, trace.rounds, trace.dropped, trace.unreadable) == (second, 1, 3, 1)
    # Written behind half a line, a new start begins a line of its own.
    TraceWriter(path, START).close()
    assert read_trace(path).start == START


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no trace\n", "is no trace: 1 lines"),
        (ROUND.to_json(), "is no trace: 0 lines"),
        (START.to_json(), "holds no round"),
        (replace(START, version=9).to_json(), "version 9; this release reads 1"),
        (json.dumps({**asdict(ROUND), "drafted": -1}), "is no trace: 1 lines"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(SpecError, match=message):
        read_trace(tmp_path / "t")


def test_a_file_that_cannot_be_opened_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        read_trace(tmp_path / "t")
    for path in (tmp_path, tmp_path / "missing" / "t"):
        with pytest.raises(SpecError, match="must be a file that can be written"):
            check_trace_path(path)
        with pytest.raises(SpecError, match="must be a file that can be written"):
            TraceWriter(path, START)
