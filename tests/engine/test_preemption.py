"""Calls that lose their blocks while they run: the same text, nobody waits for ever, nothing is lost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hand_stepped import Engine
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tiny_models import BLOCK, VOCAB, TinyModel

from pipeline.engine.call import Call
from pipeline.errors import StepError
from pipeline.sampling.params import GREEDY, SamplingParams

PROMPTS = ((57, 82, 25, 87, 55, 60, 59), (57, 82, 25, 87, 11), (9, 9, 9))
WARM = SamplingParams(0.9)
EDITED = SamplingParams(0.9, 20, 0.95, repetition_penalty=1.3)
BLOCKS = 10
TEXT = BLOCKS * BLOCK - max(len(prompt) for prompt in PROMPTS)  # the longest that fits


@pytest.fixture
def large(tiny: TinyModel) -> Iterator[Engine]:
    engine = Engine(tiny)
    yield engine
    engine.scheduler.close()


def finish(engine: Engine, *calls: Call) -> None:
    for call in calls:
        engine.run(call.future)
    assert engine.idle
    engine.scheduler.close()


@pytest.mark.parametrize("priorities", [(0, 0), (2, 0), (1, 1), (3, 2), (0, 1)])
def test_the_last_in_rank_gives_way(tiny: TinyModel, priorities: tuple[int, int]) -> None:
    """Two that need more than half of the pool each: the younger, or the one of lower priority, starts again."""
    engine = Engine(tiny, BLOCKS)
    calls = [engine.call(PROMPTS[i], 30, arrival=i, priority=priority) for i, priority in enumerate(priorities)]
    first, last = (calls[1], calls[0]) if (priorities[0] or 2) > (priorities[1] or 2) else calls
    engine.step()
    assert set(engine.running) == set(calls), "there is room for both to begin"
    engine.run(first.future)
    assert not last.future.done() and last.preempted == 1 and first.preempted == 0
    finish(engine, *calls)
    for call, prompt in zip(calls, PROMPTS, strict=False):
        assert call.future.result().output_ids == tiny.greedy(prompt, 30)
    assert last.future.result().kv.preempted == 1


def test_of_two_that_could_make_room_the_younger_does(tiny: TinyModel) -> None:
    engine = Engine(tiny, BLOCKS)
    older, younger = (engine.call((token,) * 12, 3, arrival=token) for token in (7, 8))
    engine.step()
    first = engine.call((5,) * 16, 2, arrival=1)
    engine.step()
    assert engine.running == [older, first] and engine.waiting == [younger]
    finish(engine, older, younger, first)


def test_who_comes_first_takes_the_room_at_once(tiny: TinyModel) -> None:
    """An older request that comes back for its next round does not wait for younger ones to end."""
    engine = Engine(tiny, BLOCKS)
    young = engine.call(PROMPTS[0], 30, arrival=7)
    for _ in range(20):
        engine.step()
    old = engine.call((5,) * 30, 3, arrival=1)
    engine.step()
    assert engine.running == [old] and engine.waiting == [young] and len(old.output) == 1
    finish(engine, old, young)
    assert young.future.result().output_ids == tiny.greedy(PROMPTS[0], 30)


def test_nobody_is_put_out_for_nothing(tiny: TinyModel) -> None:
    """Where the blocks of all later calls would not be enough, they go on."""
    engine = Engine(tiny, BLOCKS)
    oldest = engine.call(PROMPTS[0], 12, arrival=0)
    youngest = engine.call(PROMPTS[2], 5, arrival=9)
    engine.step()
    large = engine.call((5,) * 36, 3, arrival=5)
    engine.step()
    assert engine.waiting == [large] and engine.running == [oldest, youngest]
    finish(engine, oldest, large, youngest)
    assert youngest.preempted == 0


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"sampling": WARM, "seed": 5},
    "penalties": {"sampling": EDITED, "seed": 6},
    "coupled": {"sampling": WARM, "seed": 7, "rule": "coupled"},
    "laws": {"sampling": WARM, "seed": 8, "return_logits": True},
    "log_probs": {"sampling": EDITED, "seed": 9, "return_log_probs": True},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("after", [1, 2, 9])
def test_what_was_decided_stays_decided(tiny: TinyModel, large: Engine, name: str, after: int) -> None:
    """Put out after any pass, its blocks overwritten: tokens, laws and log-probabilities are those of a large pool."""
    options = OPTIONS[name]
    alone = large.call(PROMPTS[0], 16, **options)
    large.run(alone.future)
    engine = Engine(tiny, BLOCKS, budget=5)
    call = engine.call(PROMPTS[0], 16, arrival=2, **options)
    for _ in range(after):
        engine.step()
    bully = engine.call((5,) * 36, 3, arrival=1)
    finish(engine, bully, call)
    expected, found = alone.future.result(), call.future.result()
    assert found.kv.preempted == 1 and found.output_ids == expected.output_ids
    assert found.log_probs == expected.log_probs
    if expected.generation_logits is not None:
        assert found.generation_logits is not None
        assert np.array_equal(found.generation_logits, expected.generation_logits)


@pytest.mark.parametrize("after", [1, 3])
def test_a_verify_is_put_out(tiny: TinyModel, after: int) -> None:
    """Its drafts were not decided yet: they ride again."""
    engine = Engine(tiny, BLOCKS, budget=2)
    text = tiny.greedy(PROMPTS[0], 6)
    call = engine.call(PROMPTS[0], 6, arrival=2, draft_ids=(*text[:3], VOCAB - 1, VOCAB - 1))
    for _ in range(after):
        engine.step()
    bully = engine.call((5,) * 36, 3, arrival=1)
    finish(engine, bully, call)
    result = call.future.result()
    assert result.kv.preempted == 1
    assert result.output_ids == text[:4] and result.total_accepted_draft_tokens == 3


def test_a_call_that_waits_is_stopped_at_once(tiny: TinyModel) -> None:
    engine = Engine(tiny, BLOCKS)
    call = engine.call(PROMPTS[0], 30, arrival=2, request_id="x")
    engine.step()
    bully = engine.call((5,) * 36, 3, arrival=1)
    engine.step()
    engine.scheduler.stop("x")
    with pytest.raises(StepError, match="stopped"):
        call.future.result(0)
    finish(engine, bully)


class Traffic(RuleBasedStateMachine):
    """Calls of any kind come, are stopped and are stepped, in a pool with room for one of the longest.

    The model is simple: whoever is first in rank gets on with every pass, and every text is that of a call alone.
    """

    tiny: TinyModel
    texts: dict[tuple[int, int | None], tuple[int, ...]]  # by prompt and seed; no seed: greedy

    @initialize(budget=st.sampled_from([2, 7, 64]), max_calls=st.integers(1, 4))
    def start(self, budget: int, max_calls: int) -> None:
        self.engine = Engine(self.tiny, BLOCKS, max_calls, budget)
        self.calls: list[tuple[Call, tuple[int, ...]]] = []
        self.preempted = 0

    @rule(
        prompt=st.integers(0, 2),
        seed=st.sampled_from([None, 1, 2]),
        done=st.integers(0, 12),
        k=st.integers(-1, 4),
        right=st.integers(0, 4),
        new=st.integers(1, 18),
        arrival=st.integers(0, 5),
        priority=st.integers(0, 3),
        continues=st.booleans(),
    )
    def add(
        self,
        prompt: int,
        seed: int | None,
        done: int,
        k: int,
        right: int,
        new: int,
        arrival: int,
        priority: int,
        continues: bool,
    ) -> None:
        text = self.texts[prompt, seed]
        drafts: tuple[int, ...] = ()
        if k > 0:
            kept = min(right, k)
            wrong = (text[done + kept] + 1) % VOCAB
            drafts, new = (*text[done : done + kept], *[wrong] * (k - kept)), k + 1
            length = kept + 1
        else:
            length = new
        call = self.engine.call(
            (*PROMPTS[prompt], *text[:done]),
            new,
            "block" if seed is None else "coupled",
            draft_ids=drafts,
            sampling=GREEDY if seed is None else WARM,
            seed=seed or 0,
            arrival=arrival,
            priority=priority,
            continues=continues,
            request_id=str(len(self.calls)),
        )
        self.calls.append((call, text[done : done + length]))

    @rule(which=st.integers(0, 20))
    def stop(self, which: int) -> None:
        self.engine.scheduler.stop(str(which))

    @rule(passes=st.integers(1, 6))
    def step(self, passes: int) -> None:
        for _ in range(passes):
            self._pass()

    @invariant()
    def sound(self) -> None:
        self.engine.kv.check_integrity()

    def _pass(self) -> None:
        there = [call for call, _ in self.calls if not call.future.done()]
        first = min(there, key=lambda call: call.rank, default=None)
        before = 0 if first is None else first.computed_tokens + len(first.output)
        rank = math.inf if first is None else first.preempted
        self.engine.step()
        if first is not None:
            assert first.future.done() or first.computed_tokens + len(first.output) > before, "the first waits"
            assert first.preempted == rank, "the first gave way"

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while any(not call.future.done() for call, _ in self.calls):
            self._pass()
        for call, text in self.calls:
            if call.stopped:
                error = call.future.exception(0)
                found = () if error is not None else call.future.result().output_ids
                assert found == text[: len(found)]
            else:
                assert call.future.result(0).output_ids == text
        Traffic.seen += sum(call.preempted for call, _ in self.calls)
        self.engine.scheduler.forget_callers()
        assert self.engine.idle
        self.engine.scheduler.close()

    seen = 0


def test_any_traffic(tiny: TinyModel, large: Engine) -> None:
    texts: dict[tuple[int, int | None], tuple[int, ...]] = {}
    for i, prompt in enumerate(PROMPTS):
        texts[i, None] = large.run(large.add(prompt, TEXT))
        for seed in (1, 2):
            texts[i, seed] = large.run(large.add(prompt, TEXT, rule="coupled", sampling=WARM, seed=seed))
    Traffic.tiny, Traffic.texts, Traffic.seen = tiny, texts, 0
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Traffic, settings=settings(derandomize=True, deadline=None, max_examples=60, stateful_step_count=25)
    )
    assert Traffic.seen > 20, "hardly anybody was preempted"
