"""A soak finds what is planted: wrong text, errors without a fault, leaks, slow recovery, growing memory."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pipeline.client.triton_client import Reply
from pipeline.errors import ServerError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.soak.answer import Collector, OneAnswer, Outcome, difference
from pipeline.soak.fault import Damage, Fault, Window
from pipeline.soak.leaks import TRITON, Holdings, kept_by_triton, leaks
from pipeline.soak.ledger import Ledger
from pipeline.soak.processes import ProcessSample, slopes
from pipeline.soak.report import FaultReport, SoakReport
from pipeline.soak.site import Site
from pipeline.spec import DEFAULT_SPEC, DeploymentSpec

REQUEST = GenerationRequest("x", 3)
REFERENCE = (OneAnswer((5, 6, 7), "abc", (-1.0, -2.0, -3.0), "length"),)
WHOLE = Outcome("whole", REFERENCE)


class Harmless(Fault):
    name = "harmless"

    def inject(self, site: Site) -> Damage:
        raise AssertionError("a judge injects nothing")


class Harmful(Harmless):
    name = "harmful"
    kills = True
    excuses = re.compile("model target: ")


def cut(tokens: int, **changes: object) -> Outcome:
    one = OneAnswer(REFERENCE[0].token_ids[:tokens], REFERENCE[0].text[:tokens], REFERENCE[0].log_probs[:tokens])
    return Outcome("cancelled", (replace(one, **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (WHOLE, None),
        (cut(0), None),
        (cut(2), None),
        (Outcome("cancelled"), None),
        (Outcome("error", (), "boom"), None),
        (Outcome("whole", (replace(REFERENCE[0], token_ids=(5, 6, 8)),)), "answer 0: token_ids"),
        (Outcome("whole", (replace(REFERENCE[0], token_ids=(5, 6)),)), "answer 0: token_ids"),
        (Outcome("whole", (replace(REFERENCE[0], text="abd"),)), "answer 0: text"),
        (Outcome("whole", (replace(REFERENCE[0], log_probs=(-1.0, -2.0, -3.0000002)),)), "answer 0: log_probs"),
        (Outcome("whole", (replace(REFERENCE[0], finish_reason="eos"),)), "finish_reason is eos"),
        (Outcome("whole", REFERENCE * 2), "2 answers instead of 1"),
        (cut(2, token_ids=(5, 9)), "answer 0: token_ids"),
        (cut(2, text="aX"), "answer 0: text"),
    ],
)
def test_every_difference_to_plain_decoding_is_seen(outcome: Outcome, words: str | None) -> None:
    found = difference(REFERENCE, outcome)
    assert found is None if words is None else found is not None and words in found


def test_pieces_of_several_answers_are_put_together() -> None:
    collector = Collector()
    for index, token in ((1, 8), (0, 5), (1, 9)):
        collector.add([Reply("t", (token,), None, None, "length" if token == 9 else None, 0.0, sequence_index=index)])
    assert [one.token_ids for one in collector.answer] == [(5,), (8, 9)]
    assert [one.finish_reason for one in collector.answer] == [None, "length"]


def test_an_error_needs_a_fault_that_explains_it() -> None:
    ledger = Ledger()
    ledger.add_window(Window(Harmful(), 10.0, 20.0, Damage(1.0)))
    ledger.add_window(Window(Harmless(), 30.0, 40.0, Damage(1.0)))
    ledger.add_window(Window(Harmless(), 50.0, 60.0, Damage(1.0), restarted=True))
    died = "model target: its process died"
    for began, ended, error in (
        (5.0, 11.0, died),  # explained
        (21.0, 21.5, died),  # still on its way
        (5.0, 9.0, died),  # before
        (25.0, 26.0, died),  # after
        (12.0, 13.0, "something else"),  # not that fault's
        (31.0, 32.0, died),  # a fault that may fail nothing
        (51.0, 52.0, "the connection broke: ConnectionResetError"),  # explained
        (51.0, 52.0, "nonsense"),
    ):
        ledger.add(REQUEST, REFERENCE, Outcome("error", (), error), began, ended)
    assert ledger.excused == {"harmful": 2, "harmless": 1}
    assert ledger.unexcused == [died, died, "something else", died, "nonsense"]


def test_leaks_by_name() -> None:
    before = Holdings(
        kv_blocks={"target": 0},
        requests={"running": 0},
        threads={"spec_decode": 25, "draft": 10, "tritonserver": 250},
        files={"draft": 5},
        pids={"spec_decode": 1, "draft": 2, "tritonserver": 3},
        shared_memory=3,
    )
    assert leaks(before, before) == {}
    # Four calls died with a target: their threads are known. A draft that was started since has sockets of its parent.
    samples = [ProcessSample(float(t), "draft", 9, 0, 11 + (t > 8), 30) for t in range(10)]
    after = replace(
        before,
        threads={"spec_decode": 29, "draft": 11, "tritonserver": 200},
        files={"draft": 30},
        pids={**before.pids, "draft": 9},
        abandoned=4,
    )
    assert leaks(before, after, samples) == {}
    planted = replace(
        after,
        kv_blocks={"target": 2},
        requests={"running": 1},
        threads={"spec_decode": 30, "draft": 12, "tritonserver": 251},
        files={"draft": 33},
        shared_memory=4,
    )
    assert leaks(before, planted, samples) == {
        "KV blocks of target": 2,
        "requests running": 1,
        "threads of spec_decode": 1,
        "threads of draft": 1,
        "threads of tritonserver": 1,
        "file handles of draft": 3,
        "entries of /dev/shm": 1,
    }


def test_slope_of_the_longest_life() -> None:
    """10 MB a minute in it; the jump where the process was started again is none."""
    first = [ProcessSample(float(t), "target", 1, 900_000_000) for t in range(20)]
    fills = [ProcessSample(20.0 + t, "target", 2, 100_000_000 + 50_000_000 * t) for t in range(10)]
    second = [ProcessSample(30.0 + t, "target", 2, 600_000_000 + round(t * 10e6 / 60)) for t in range(60)]
    assert slopes([*first, *fills, *second])["target"] == pytest.approx(10.0, rel=1e-3)
    assert slopes(first[:4]) == {}


GOOD = SoakReport(
    deployment="d",
    seconds=60.0,
    clients=2,
    requests=100,
    whole=80,
    tokens=800,
    cancelled=15,
    wrong=(),
    hung=(),
    unexcused=(),
    faults=(FaultReport("kill draft", 2, 2, True, (3.0, 9.9), 0, (), ()),),
    leaks={},
    left=0,
    kept_by_triton={},
    abandoned=3,
    slopes={},
    supervisor=(),
    seed=0,
)


def test_a_good_soak_is_good() -> None:
    assert GOOD.broken() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wrong": ("text",)}, "wrong: text"),
        ({"hung": ("silence",)}, "hung: silence"),
        ({"unexcused": ("boom",)}, "error without a fault that explains it: boom"),
        ({"leaks": {"threads of draft": 2}}, "leaked: 2 threads of draft"),
        ({"left": 1}, "left after the stop: 1 processes or regions"),
        ({"cancelled": 9}, "cancelled: 9 of 100, fewer than 10%"),
        ({"faults": (replace(GOOD.faults[0], injected=1),)}, "kill draft: injected 1 times instead of 2"),
        ({"faults": (replace(GOOD.faults[0], recovery_s=(3.0, 10.0)),)}, "kill draft: recovery took 10.0 s"),
        ({"faults": (replace(GOOD.faults[0], problems=("bad",)),)}, "kill draft: bad"),
    ],
)
def test_every_must_is_judged(changes: dict[str, object], words: str) -> None:
    broken = replace(GOOD, **changes).broken()  # type: ignore[arg-type]
    assert len(broken) == 1 and broken[0].startswith(words)


@pytest.mark.parametrize(("ahead", "pool"), [("off", 2 * 32 + 8), ("on", 4 * 32 + 8)])
def test_what_triton_keeps_is_counted_by_its_repairs(ahead: str, pool: int) -> None:
    """A thread pool, 3 threads and a file per model that was loaded again since this Triton began."""
    said = ["model draft was loaded again after 2 s"] * 5 + ["an inference has passed after 9 s, pid 7"]
    said += ["model draft was loaded again after 2 s", "model target was loaded again after 3 s"]
    spec = DeploymentSpec.load(DEFAULT_SPEC).model_copy(update={"draft_ahead": ahead})
    kept = kept_by_triton(Site(spec, "g", "h", None, None, said))
    assert kept == {f"threads of {TRITON}": 2 * (pool + 3), f"file handles of {TRITON}": 2}


def test_a_site_between_two_servers_has_no_stub() -> None:
    with pytest.raises(ServerError, match="no server"):
        Site(DeploymentSpec.load(DEFAULT_SPEC), "g", "h", None, None, []).stub("draft")
