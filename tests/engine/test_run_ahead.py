"""Rows that run ahead of their caller: the same text, no pass lost, nothing kept for callers that do not come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from hand_stepped import Engine
from tiny_models import LIMITS, TinyModel, Watched

from pipeline.engine import embedded
from pipeline.engine.call import Call
from pipeline.engine.decoder import Best
from pipeline.engine.run_ahead import PATIENCE
from pipeline.engine.step import StepRequest, StepResult
from pipeline.errors import StepError
from pipeline.sampling.params import GREEDY, SamplingParams
from pipeline.sampling.random import call_seed

PROMPT = (57, 82, 25, 87, 55, 60, 59)
WARM = SamplingParams(0.9)
BURSTS = (1, 2, 4, 3, 5)


@pytest.fixture
def engine(tiny: TinyModel) -> Iterator[Engine]:
    engine = Engine(tiny)
    yield engine
    engine.scheduler.fail_all(StepError("over"))
    assert engine.idle
    engine.scheduler.close()


def in_bursts(engine: Engine, sampling: SamplingParams, rule: str, continues: bool) -> list[int]:
    text = list(PROMPT)
    for index, burst in enumerate(BURSTS):
        seed = 3 if rule == "coupled" else call_seed(3, index, "target")
        future: Future[StepResult] = Future()
        request = StepRequest(str(index), tuple(text), burst, sampling=sampling, seed=seed, continues=continues)
        engine.scheduler.add(Call(request, rule, future, ()))
        text += engine.run(future)
        engine.step()  # what a server does until the next call is there
    return text


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [(GREEDY, "block"), (WARM, "block"), (WARM, "coupled"), (SamplingParams(0.0, repetition_penalty=1.3), "block")],
)
def test_text_is_that_of_calls_on_their_own(
    engine: Engine, tiny: TinyModel, sampling: SamplingParams, rule: str
) -> None:
    """And every token is computed once: none again in the next call, none for nothing but the last."""
    ahead = in_bursts(engine, sampling, rule, continues=True)
    computed = [start + i for rows in engine.rows for start, count in rows for i in range(count)]
    assert sorted(computed) == list(range(len(PROMPT) + sum(BURSTS)))
    assert ahead == in_bursts(Engine(tiny), sampling, rule, continues=False)


def test_a_call_that_comes_late_has_lost_no_pass(engine: Engine) -> None:
    """Beside another request: the row is in every pass, and its first token is there before the next one."""
    other = engine.add((9, 9, 9), 30)
    first = engine.run(engine.add(PROMPT, 3, continues=True))
    engine.step()  # the next call is on its way
    before = len(engine.rows)
    following = engine.add((*PROMPT, *first), 2)
    engine.step()
    assert len(following.result(0).output_ids) == 2 and len(engine.rows) == before + 1
    assert all(len(rows) == 2 for rows in engine.rows[:-1])
    assert not other.done()


def test_a_call_that_comes_at_once_takes_the_pages(engine: Engine) -> None:
    """Before the row had its pass: the call goes on as any other, on what is there."""
    first = engine.run(engine.add(PROMPT, 3, continues=True))
    result = engine.add((*PROMPT, *first), 2)
    engine.run(result)
    assert result.result().kv.reused_tokens == len(PROMPT) + 2
    assert result.result().kv.computed_tokens == 2


def test_a_verify_of_the_same_text_is_right(engine: Engine, tiny: TinyModel) -> None:
    greedy = tiny.greedy(PROMPT, 8)
    engine.run(engine.add(PROMPT, 3, continues=True))
    engine.step()
    verdict = engine.run(engine.add((*PROMPT, *greedy[:3]), 4, draft_ids=greedy[3:6]))
    assert verdict == greedy[3:7]
    assert not engine.scheduler.expects_callers


def test_a_sampling_call_after_a_greedy_one_gets_its_own_pass(engine: Engine, tiny: TinyModel) -> None:
    """No logits were kept for it: only the largest is known."""
    first = engine.run(engine.add(PROMPT, 3, continues=True))
    engine.step()
    sampled = engine.run(engine.add((*PROMPT, *first), 4, sampling=WARM, seed=5))
    alone = Engine(tiny)
    assert sampled == alone.run(alone.add((*PROMPT, *first), 4, sampling=WARM, seed=5))


@pytest.mark.parametrize("way", ["passes", "forget", "room", "stop", "logits", "end"])
def test_nothing_is_kept_for_who_does_not_come(tiny: TinyModel, way: str) -> None:
    engine = Engine(tiny, blocks=6)
    size = LIMITS.tokens_per_block
    if way == "stop":
        future = engine.add(PROMPT, 8, continues=True)
        engine.step()
        engine.scheduler.stop("r")
        engine.run(future)
    elif way == "logits":
        engine.run(engine.add(PROMPT, 3, continues=True, return_logits=True))
    elif way == "end":
        engine.run(engine.add(PROMPT, 6, continues=True, end_id=tiny.greedy(PROMPT, 3)[2]))
    else:
        engine.run(engine.add(PROMPT, 3, continues=True))
        assert engine.scheduler.expects_callers and engine.scheduler.busy and not engine.idle
        engine.step()
        assert not engine.scheduler.busy
    if way == "passes":
        engine.run(engine.add((9, 9), PATIENCE + 2))
    elif way == "room":  # all of the pool
        assert len(engine.run(engine.add((9, 9), 6 * size - 2))) == 6 * size - 2
    elif way == "forget":
        engine.scheduler.forget_callers()
    assert not engine.scheduler.expects_callers and engine.idle
    engine.scheduler.close()


def test_an_engine_without_work_gives_back_what_it_kept(target: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "CALLER_WAIT_S", 0.01)
    target.call(PROMPT, 3, continues=True)
    deadline = time.monotonic() + 20
    while target.model.kv.available_blocks < target.model.kv.pool.num_blocks:
        assert time.monotonic() < deadline, "blocks are kept for ever"
        time.sleep(0.005)


def test_logits_that_are_not_finite_fail_the_call_that_goes_on_from_them(engine: Engine, tiny: TinyModel) -> None:
    first = engine.run(engine.add(PROMPT, 3, continues=True))
    best = engine.decoder.best
    engine.decoder.best = lambda: Best(best().places, [False])  # type: ignore[method-assign]
    engine.step()
    engine.decoder.best = best  # type: ignore[method-assign]
    with pytest.raises(StepError, match="not finite"):
        engine.run(engine.add((*PROMPT, *first), 2))
    assert engine.run(engine.add((*PROMPT, *first), 2)) == tiny.greedy(PROMPT, 5)[3:]
