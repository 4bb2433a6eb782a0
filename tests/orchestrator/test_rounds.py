"""The shape of a request: which rounds it has, how many drafts each takes, what is sent, what is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pipeline.drafting.hybrid import HybridDrafter
from pipeline.drafting.ngram import NgramDrafter
from pipeline.drafting.none import NoDrafter
from pipeline.errors import StepError
from pipeline.orchestrator.controllers.base import ControllerFactory, Observation
from pipeline.orchestrator.controllers.fixed import FixedController, FixedFactory
from pipeline.orchestrator.controllers.heuristic import HeuristicFactory
from pipeline.orchestrator.draft_health import DraftHealth
from pipeline.sampling.params import SamplingParams

from .scripted import (
    CAPABILITIES,
    LIMITS,
    ScriptedDrafter,
    ask,
    make_rig,
    run,
)

SCRIPT = "the quick brown fox jumps over the lazy dog"
SAMPLED = SamplingParams(temperature=1.0)


def test_round_0_is_plain() -> None:
    """The first token waits for no draft: one target call for one token, and no offer is asked for before it."""
    rig = make_rig(SCRIPT)
    outcome = run(rig)
    assert (rig.target.calls[0].draft_ids, rig.target.calls[0].max_new_tokens) == ((), 1)
    first = outcome.chunks[0]
    assert first.round is not None
    assert (first.text, first.round.source, first.round.reason) == ("t", "none", "first_token")
    assert cast(ScriptedDrafter, rig.drafter).proposed[0] == (1, 4)


@pytest.mark.parametrize("max_tokens", range(1, 16))
@pytest.mark.parametrize("k", [1, 3, 8])
def test_k_is_what_can_still_be_wanted(max_tokens: int, k: int) -> None:
    """A verify commits up to K + 1 tokens, so K is at most remaining - 1; all right, the rounds are these."""
    rig = make_rig(SCRIPT, k=k)
    run(rig, ask(max_tokens=max_tokens))
    expected, remaining = [0], max_tokens - 1
    while remaining > 0:
        expected.append(min(k, remaining - 1))
        remaining -= expected[-1] + 1
    assert rig.verified == expected


def test_k_is_what_the_engines_can_take() -> None:
    """The target's max_draft_len and the draft's own room bound K."""
    assert max(make_and_run(k=20)) == LIMITS.max_draft_len
    assert max(make_and_run(k=6, max_k=2)) == 2
    assert max(make_and_run(k=6, max_k=0)) == 0
    assert max(make_and_run(k=6, limits=LIMITS.model_copy(update={"max_draft_len": 0}))) == 0


def make_and_run(**options: Any) -> list[int]:
    rig = make_rig(SCRIPT, **options)
    run(rig, ask(max_tokens=40))
    return rig.verified


def test_the_context_is_never_passed() -> None:
    """prompt + max_tokens = max_seq_len runs to its end; the scripted target checks the length of every call."""
    outcome = run(make_rig("x" * 300, k=8), ask(max_tokens=LIMITS.max_seq_len - 2))
    assert outcome.statistics.committed_tokens == LIMITS.max_seq_len - 2


@pytest.mark.parametrize("right", [0, 1, 2, 4])
def test_statistics_of_a_known_run(right: int) -> None:
    """21 tokens with K = 4 and a draft that is right for some tokens: every figure by hand."""
    rig = make_rig(SCRIPT, k=4, right=lambda index: right)
    statistics = run(rig, ask(max_tokens=1 + 4 * (right + 1))).statistics
    full = [4] * 4 if right == 4 else rig.verified[1:]
    accepted = [min(right, k) for k in full]
    assert statistics.prompt_tokens == 2
    assert statistics.num_draft_tokens == sum(full) and statistics.num_accepted_draft_tokens == sum(accepted)
    assert statistics.draft_acceptance_rate == sum(accepted) / sum(full)
    speculative = sum(k > 0 for k in full)
    assert statistics.spec_rounds == speculative
    assert statistics.acceptance_histogram[min(right, 4)] >= 1
    if right == 4:
        assert (statistics.mean_acceptance_length, statistics.acceptance_histogram) == (5.0, (0, 0, 0, 0, 4))
        assert statistics.histogram_by_draft_length == {0: 1, 4: 4}
        assert statistics.decisions == {"first_token": 1, "fixed": 4}
    assert statistics.target_computed_tokens == sum(k + 1 for k in rig.verified)


def test_a_stream_is_a_chunk_per_round() -> None:
    """Each chunk carries its round's tokens, and its record where the request asked for it."""
    for wanted in (True, False):
        rig = make_rig(SCRIPT)
        outcome = run(rig, ask(return_perf_metrics=wanted))
        assert len(outcome.chunks) == len(rig.target.calls)
        assert all((chunk.round is not None) == wanted for chunk in outcome.chunks)
        assert outcome.text == SCRIPT[:20]


@pytest.mark.parametrize("exclude", [True, False])
def test_one_chunk_without_streaming(exclude: bool) -> None:
    """stream=False: exactly one chunk, with all tokens; the prompt is in front unless excluded."""
    outcome = run(make_rig(SCRIPT), ask(stream=False, exclude_input_in_output=exclude))
    assert len(outcome.chunks) == 1 and outcome.chunks[0].round is None
    assert outcome.text == ("" if exclude else "> ") + SCRIPT[:20]
    assert bytes(outcome.token_ids).decode() == SCRIPT[:20]
    streamed = run(make_rig(SCRIPT), ask(exclude_input_in_output=exclude))
    assert streamed.text == SCRIPT[:20], "a stream never repeats the prompt"


def test_num_draft_tokens() -> None:
    """0 decodes plainly in bursts, n fixes K whatever the deployment's controller, None leaves it in charge."""
    rig = make_rig(SCRIPT, k=3)
    plain = run(rig, ask(num_draft_tokens=0, max_tokens=20))
    assert [call.max_new_tokens for call in rig.target.calls] == [1, 2, 4, 8, 5]
    assert set(rig.verified) == {0} and plain.statistics.decisions == {"first_token": 1, "request": 4}
    assert not cast(ScriptedDrafter, rig.drafter).limits, "nobody asks the draft"
    rig = make_rig(SCRIPT, k=3)
    assert run(rig, ask(num_draft_tokens=5)).text == plain.text
    assert rig.verified == [0, 5, 5, 5, 0]
    rig = make_rig(SCRIPT, k=3)
    assert run(rig, ask(num_draft_tokens=None)).text == plain.text
    assert rig.verified == [0, 3, 3, 3, 3, 2]
    assert run(make_rig(SCRIPT, k=3), ask(num_draft_tokens=LIMITS.max_draft_len)).text == plain.text


def test_a_heuristic_deployment() -> None:
    """K follows the last round, except the first one of a draft model, which prefills."""
    rig = make_rig(SCRIPT, controllers=HeuristicFactory(2, 8), right=lambda index: 9 if index < 4 else 0)
    run(rig, ask(max_tokens=40))
    assert rig.verified[:7] == [0, 2, 2, 4, 6, 5, 4]


class Watching(FixedController, ControllerFactory):
    """K = 3, and a note of what it is told."""

    def __init__(self) -> None:
        super().__init__(3, 8)
        self.seen: list[Observation] = []

    def start(self) -> Watching:
        return self

    def observe(self, observation: Observation) -> None:
        self.seen.append(observation)


def test_what_a_controller_is_told() -> None:
    """Each round's key, drafts, kept drafts, decided tokens, load and times; not those that prefill (round 0 and
    the first of a draft model) nor those whose draft failed."""
    watching = Watching()
    failed = StepError("once")
    rig = make_rig(
        SCRIPT, controllers=watching, right=lambda index: index % 4, error=failed, fails=lambda index: index == 3
    )
    rig.orchestrator.draft_health = Patient()
    outcome = run(rig, ask(max_tokens=16))
    assert rig.verified == [0, 3, 3, 0, 3, 3, 3, 2]
    expected = [(3, 2, 3), (3, 0, 1), (3, 1, 2), (3, 2, 3), (2, 2, 3)]
    told = [(seen.key, seen.drafted, seen.accepted, seen.computed, seen.load) for seen in watching.seen]
    assert told == [("model", *numbers, 1) for numbers in expected]
    records = [chunk.round for chunk in outcome.chunks if chunk.round is not None]
    for seen, index in zip(watching.seen, (2, 4, 5, 6, 7), strict=True):
        times = seen.times
        assert (times.draft_s, times.verify_s) == (records[index].draft_s, records[index].verify_s)
        assert times.draft_s > 0 and times.verify_s > 0 and times.overhead_s > 0
    statistics = outcome.statistics
    assert statistics.draft_s + statistics.verify_s + statistics.overhead_s <= statistics.total_s


class Patient(DraftHealth):
    """Never rests."""

    @property
    def usable(self) -> bool:
        return True


def test_plain_rounds_are_told_too() -> None:
    """A burst counts its tokens, and has no key."""
    watching = Watching()
    run(make_rig(SCRIPT, controllers=watching, drafter=NoDrafter()), ask(max_tokens=4))
    assert [(seen.key, seen.drafted, seen.computed) for seen in watching.seen] == [(None, 0, 1)] * 3


def test_a_rule_that_the_request_names() -> None:
    """The request's rule goes to the target; without one the deployment's, "auto" meaning the best offered."""
    for asked, sent in (("auto", "block"), ("token", "token"), ("match", "match")):
        rig = make_rig(SCRIPT)
        assert run(rig, ask(acceptance_rule=asked)).statistics.rule == sent
        assert {call.rule for call in rig.target.calls} == {sent}


@pytest.mark.parametrize("verifies", [0, 1, 3])
def test_a_target_that_drops_drafts(verifies: int) -> None:
    """Drafts that were sent but not looked at are not counted, and the text is the same."""
    rig = make_rig(SCRIPT, k=5, verifies=verifies)
    outcome = run(rig)
    assert outcome.text == SCRIPT[:20]
    assert max(outcome.statistics.histogram_by_draft_length) == verifies
    assert max(rig.verified) == 5
    if verifies == 0:
        assert outcome.statistics.num_draft_tokens == outcome.statistics.spec_rounds == 0


@pytest.mark.parametrize(("verifies", "rounds"), [(0, 0), (1, 8)])
def test_dropped_drafts_say_nothing_about_a_round(verifies: int, rounds: int) -> None:
    """Without any left the call was plain decoding: neither its time nor its tokens are those of a verify."""
    watching = Watching()
    outcome = run(make_rig(SCRIPT, controllers=watching, verifies=verifies))
    assert outcome.text == SCRIPT[:20]
    drafted = [seen for seen in watching.seen if seen.key is not None]
    assert len(drafted) == rounds and all(seen.drafted == verifies for seen in drafted)


def test_what_is_reproducible() -> None:
    """Greedy always; sampled with a fixed K, where the engine is deterministic and drops no drafts."""
    cases = [
        (SAMPLED, None, {}, False),
        (SAMPLED, 3, {}, True),
        (SamplingParams(), None, {}, True),
        (SamplingParams(), None, {"deterministic": False}, False),
        (SAMPLED, 3, {"drops_drafts": True}, False),
    ]
    for sampling, k, changes, expected in cases:
        rig = make_rig(SCRIPT, capabilities=CAPABILITIES.model_copy(update=changes))
        outcome = run(rig, ask(sampling=sampling, num_draft_tokens=k, seed=1))
        assert outcome.statistics.reproducible is expected


@pytest.mark.parametrize("drafter", [NoDrafter(), NgramDrafter(2, 4), HybridDrafter([NgramDrafter(2, 4), NoDrafter()])])
def test_real_drafters(drafter: Any) -> None:
    """No draft, look-up and both together give the script; where the text repeats itself, look-up is right."""
    script = "one two, one two, one two, one two, one two, "
    rig = make_rig(script, k=6, drafter=drafter)
    outcome = run(rig, ask(max_tokens=45))
    assert outcome.text == script
    if isinstance(drafter, NoDrafter):
        assert outcome.statistics.decisions == {"first_token": 1, "no_offer": 43, "last_token": 1}
    else:
        assert outcome.statistics.rounds_by_source["ngram"] >= 4
        assert outcome.statistics.acceptance_histogram[-1] >= 3


def test_fixed_k_of_0_is_a_burst() -> None:
    """A deployment with K = 0 asks the draft for nothing."""
    rig = make_rig(SCRIPT, controllers=FixedFactory(0, 4))
    run(rig, ask(max_tokens=12))
    assert [call.max_new_tokens for call in rig.target.calls] == [1, 2, 4, 4, 1]
    assert not cast(ScriptedDrafter, rig.drafter).proposed
