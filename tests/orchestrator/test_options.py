"""Options of a request on their way through the loop: what calls carry, what is counted, in what form it is sent."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.drafting.model import ModelDrafter
from pipeline.engine.step import StepRequest, StepResult
from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import OPTIONS, SamplingParams

from .scripted import CAPABILITIES, END, INSTEAD, Rig, ScriptedModel, ask, make_manifest, make_rig, run
from .test_commit_order import cut

K = 4
SCRIPT = b"abcdefghijklmnopqrstuvw"
SAMPLED = SamplingParams(0.9)
EVERY_RULE = ("block", "token", "match", "coupled")


def after_min_tokens(tokens: list[int], minimum: int) -> list[int]:
    """What plain decoding says where the end token is impossible before `minimum` tokens."""
    return [INSTEAD if token == END and i < minimum else token for i, token in enumerate(tokens)]


@pytest.mark.parametrize("right", range(K + 1))
@pytest.mark.parametrize("k", [0, K])
def test_min_tokens_at_every_index_of_a_block(right: int, k: int) -> None:
    """EOS as plain token, accepted draft, correction or bonus, at, before and behind min_tokens."""
    for end, minimum in itertools.product(range(K + 3), repeat=2):
        tokens = [*SCRIPT[:end], END, *SCRIPT[end + 1 :]]
        rig = make_rig(tokens, k=k, right=lambda index: right)
        outcome = run(rig, ask(max_tokens=K + 4, min_tokens=minimum))
        expected = cut(after_min_tokens(tokens, minimum), K + 4, ())
        assert (outcome.text, outcome.token_ids, outcome.reason) == expected, (end, minimum)
        generated = 0
        for call in rig.target.calls:
            generated = len(call.input_ids) - 2
            assert call.min_tokens == max(0, minimum - generated)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    text=st.text(st.sampled_from("abé😀 "), min_size=1, max_size=10),
    ends=st.sets(st.integers(0, 20), max_size=3),
    minimum=st.integers(0, 12),
    stop_words=st.lists(st.text(st.sampled_from("abé😀 "), min_size=1, max_size=3), max_size=2),
    max_tokens=st.integers(12, 24),
    k=st.integers(0, 6),
    right=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    rounds=st.sampled_from(["round", "each", "whole"]),
)
def test_any_text_in_any_form(
    text: str,
    ends: set[int],
    minimum: int,
    stop_words: list[str],
    max_tokens: int,
    k: int,
    right: list[int],
    rounds: str,
) -> None:
    """Text, tokens, log-probs and reason are those of the definition, however they are streamed."""
    tokens = [*text.encode(), *b"." * 40]
    for end in sorted(ends):
        tokens[end:end] = [END]
    expected_text, ids, reason = cut(after_min_tokens(tokens, minimum), max_tokens, stop_words)
    rig = make_rig(tokens, k=k, right=lambda index: right[index % len(right)])
    form = {"stream": False} if rounds == "whole" else {"stream_tokens": rounds}
    request = ask(
        max_tokens=max_tokens,
        min_tokens=minimum,
        stop_words=tuple(stop_words),
        return_log_probs=True,
        return_perf_metrics=False,
        exclude_input_in_output=True,
        **form,
    )
    chunks = list(rig.orchestrator.generate(request))
    assert "".join(chunk.text for chunk in chunks) == expected_text
    assert [token for chunk in chunks for token in chunk.token_ids] == ids
    assert chunks[-1].finish_reason == reason
    log_probs = [value for chunk in chunks for value in chunk.log_probs]
    assert log_probs == [-float(i) for i in range(len(ids))]
    assert chunks[-1].cum_log_prob == sum(log_probs)
    if rounds == "each":
        sizes = [len(chunk.token_ids) for chunk in chunks]
        # An end token that comes in a round of its own has a chunk without tokens.
        assert sizes == [1] * len(ids) or (reason == "eos" and sizes == [1] * len(ids) + [0])
    for chunk in chunks:
        assert len(chunk.log_probs) == len(chunk.token_ids)
        chunk.text.encode()  # never half a character: surrogates would fail


def test_one_response_per_token() -> None:
    """Each token leaves alone with its own text and running sum; the record of a round is on its last one."""
    rig = make_rig(SCRIPT, k=3, right=lambda index: 3)
    chunks = list(rig.orchestrator.generate(ask(max_tokens=9, stream_tokens="each", return_log_probs=True)))
    assert [(chunk.text, chunk.token_ids) for chunk in chunks] == [(chr(c), (c,)) for c in SCRIPT[:9]]
    assert [chunk.cum_log_prob for chunk in chunks] == [-float(sum(range(i + 1))) for i in range(9)]
    assert [chunk.round is not None for chunk in chunks] == [True, False, False, False, True, False, False, False, True]
    assert [chunk.final for chunk in chunks] == [False] * 8 + [True]


def test_held_back_text_one_token_at_a_time() -> None:
    """Half characters and beginnings of stop words are held back; what ends the answer lets them go."""
    text = "é<st"
    rig = make_rig([*text.encode(), END], k=4)
    chunks = list(rig.orchestrator.generate(ask(stream_tokens="each", stop_words=("<stop>",))))
    assert [chunk.text for chunk in chunks] == ["", "é", "", "", "<st"]
    assert chunks[-1].finish_reason == "eos" and len(chunks[-1].token_ids) == 1
    rig = make_rig("é<stop>", k=4)
    chunks = list(rig.orchestrator.generate(ask(stream_tokens="each", stop_words=("<stop>",))))
    assert [chunk.text for chunk in chunks] == ["", "é"] + [""] * 6
    assert chunks[-1].finish_reason == "stop"
    assert sum(len(chunk.token_ids) for chunk in chunks) == len("é<stop>".encode()), "tokens of the stop word count"


@pytest.mark.parametrize("stop_at", range(1, 8))
def test_log_probs_are_of_committed_tokens(stop_at: int) -> None:
    """What was rejected, and what follows a stop word inside a block, has left nothing in the log-probs."""
    word = chr(SCRIPT[stop_at])
    for right in range(K + 1):
        rig = make_rig(SCRIPT, k=K, right=lambda index, right=right: right)
        outcome = run(rig, ask(stop_words=(word,), return_log_probs=True))
        values = [value for chunk in outcome.chunks for value in chunk.log_probs]
        assert values == [-float(i) for i in range(stop_at + 1)] and len(values) == len(outcome.token_ids)
        assert outcome.chunks[-1].cum_log_prob == sum(values)
    plain = run(make_rig(SCRIPT), ask(stop_words=(word,)))
    assert plain.chunks[-1].cum_log_prob is None and plain.chunks[-1].log_probs == ()


def rig_with_draft(rules: tuple[str, ...], **changes: Any) -> tuple[Rig, ScriptedModel]:
    capabilities = CAPABILITIES.model_copy(update={"rules": rules, "draft_options": OPTIONS, **changes})

    def answer(request: StepRequest) -> StepResult:
        ids = tuple(ord("x") for _ in range(request.max_new_tokens))
        logits = np.zeros((len(ids), END + 1), np.float32) if request.return_logits else None
        return StepResult(ids, generation_logits=logits)

    draft = ScriptedModel(answer)
    drafter = ModelDrafter(draft, make_manifest(capabilities=capabilities), 5.0)
    return make_rig(SCRIPT, k=2, drafter=drafter, capabilities=capabilities), draft


def test_coupled_is_what_a_seed_asks_for() -> None:
    """A seeded request that names no rule gets coupled where it is offered; both models get its seed unchanged."""
    rig, draft = rig_with_draft(EVERY_RULE)
    outcome = run(rig, ask(seed=5, sampling=SAMPLED))
    assert (outcome.statistics.rule, outcome.statistics.reproducible) == ("coupled", True)
    assert {call.seed for call in [*rig.target.calls, *draft.calls]} == {5}
    assert {call.rule for call in [*rig.target.calls, *draft.calls]} == {"coupled"}
    assert all(call.draft_logits is None for call in rig.target.calls)
    named = run(rig_with_draft(EVERY_RULE)[0], ask(seed=5, sampling=SAMPLED, acceptance_rule="token"))
    assert (named.statistics.rule, named.statistics.reproducible) == ("token", False)
    unseeded = run(rig_with_draft(EVERY_RULE)[0], ask(sampling=SAMPLED))
    assert (unseeded.statistics.rule, unseeded.statistics.reproducible) == ("block", False)
    not_offered = run(rig_with_draft(("block", "token"))[0], ask(seed=5, sampling=SAMPLED))
    assert (not_offered.statistics.rule, not_offered.statistics.reproducible) == ("block", False)


def test_what_a_coupled_request_promises() -> None:
    """K, dropped drafts and a lost draft change nothing; bits that move with the batch do."""
    for changes, expected in (({}, True), ({"drops_drafts": True}, True), ({"deterministic": False}, False)):
        for k in (None, 0, 2):
            rig, _ = rig_with_draft(EVERY_RULE, **changes)
            outcome = run(rig, ask(seed=5, sampling=SAMPLED, num_draft_tokens=k))
            assert outcome.statistics.reproducible is expected
    failing = ModelDrafter(ScriptedModel(lambda request: StepResult(())), make_manifest(), 5.0)
    capabilities = CAPABILITIES.model_copy(update={"rules": EVERY_RULE})
    outcome = run(make_rig(SCRIPT, drafter=failing, capabilities=capabilities), ask(seed=5, sampling=SAMPLED))
    assert outcome.statistics.draft_failures == 1 and outcome.statistics.reproducible


def test_a_draft_whose_bits_move_breaks_the_promise_of_the_other_rules() -> None:
    """Their text depends on what was drafted."""
    moving = make_manifest(capabilities=CAPABILITIES.model_copy(update={"deterministic": False}))
    for k, expected in ((2, False), (0, True)):
        rig = make_rig(SCRIPT, drafter=ModelDrafter(ScriptedModel(lambda request: StepResult(())), moving, 5.0))
        request = ask(seed=5, sampling=SAMPLED, num_draft_tokens=k, acceptance_rule="match")
        assert run(rig, request).statistics.reproducible is expected


EVERY_OPTION = SamplingParams(
    temperature=0.5,
    top_k=20,
    top_p=0.9,
    min_p=0.1,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=-0.4,
)


def test_words_reach_both_models_as_token_ids() -> None:
    """Bad words with and without a space before them; weights of one token add up; ids of the caller's own stay."""
    own = replace(EVERY_OPTION, logit_bias=((97, 1.0), (120, 0.5)), bad_words=((1, 2),))
    rig, draft = rig_with_draft(EVERY_RULE)
    run(rig, ask(sampling=own, seed=1, bad_words=("no", " go"), embedding_bias=(("ab", 2.0), ("b", 0.25))))
    sent = {call.sampling for call in rig.target.calls}
    assert sent == {call.sampling for call in draft.calls}
    (sampling,) = sent
    assert dict(sampling.logit_bias) == {97: 3.0, 120: 0.5, 98: 2.25}
    assert sampling.bad_words == ((1, 2), (110, 111), (32, 110, 111), (32, 103, 111))
    assert replace(sampling, logit_bias=(), bad_words=()) == EVERY_OPTION
    assert {call.end_id for call in draft.calls} == {None} and {call.min_tokens for call in draft.calls} == {0}


@pytest.mark.parametrize(
    ("name", "request_fields"),
    [
        *[(name, {"sampling": SamplingParams(**{name: getattr(EVERY_OPTION, name)})}) for name in OPTIONS[:7]],
        ("logit_bias", {"sampling": SamplingParams(logit_bias=((1, 1.0),))}),
        ("bad_words", {"sampling": SamplingParams(bad_words=((1,),))}),
        ("embedding_bias_words", {"embedding_bias": (("a", 1.0),)}),
        ("bad_words", {"bad_words": ("a",)}),
    ],
)
def test_what_an_engine_cannot_apply_is_refused(name: str, request_fields: dict[str, Any]) -> None:
    """By name, before any call; at its harmless value the option is no option."""
    option = "logit_bias" if name == "embedding_bias_words" else name
    able = tuple(other for other in OPTIONS if other != option)
    rig = make_rig(SCRIPT, capabilities=CAPABILITIES.model_copy(update={"options": able}))
    with pytest.raises(InvalidRequestError, match=f"^{name} = .*the target's engine cannot apply it; it applies "):
        run(rig, ask(**request_fields))
    assert not rig.target.calls
    assert run(rig).text == SCRIPT[:20].decode()
    assert run(make_rig(SCRIPT), ask(**request_fields)).text == SCRIPT[:20].decode()


def test_log_probs_that_an_engine_does_not_have() -> None:
    rig = make_rig(SCRIPT, capabilities=CAPABILITIES.model_copy(update={"log_probs": False}))
    with pytest.raises(InvalidRequestError, match="return_log_probs = True: the target's engine gives no log-prob"):
        run(rig, ask(return_log_probs=True))
    assert not rig.target.calls


def test_end_ids() -> None:
    """-1 is none at all; what is no token is refused."""
    tokens = [*b"ab", END, *b"cd"]
    rig = make_rig(tokens)
    assert run(rig, ask(end_id=-1, max_tokens=5)).reason == "length"
    assert {call.end_id for call in rig.target.calls} == {None}
    for bad in (-2, END + 1):
        with pytest.raises(InvalidRequestError, match=rf"end_id = {bad}: must be -1 \(none\) or a token id below 257"):
            run(make_rig(tokens), ask(end_id=bad))


def test_fields_are_checked_when_a_request_is_made() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"min_tokens": -1}, "min_tokens = -1"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens = 5: must be between 0 and max_tokens = 4"),
        ({"num_return_sequences": 0}, "num_return_sequences = 0"),
        ({"stream_tokens": "all"}, "stream_tokens = 'all'"),
        ({"stream_tokens": "each"}, "stream_tokens = 'each': needs stream = true"),
        ({"bad_words": ("",)}, "bad_words = ''"),
        ({"embedding_bias": (("a", float("nan")),)}, "embedding_bias_weights = nan"),
        ({"embedding_bias": (("a", 2e9),)}, "embedding_bias_weights = 2000000000.0: must be a number in"),
        ({"embedding_bias": (("", 1.0),)}, "embedding_bias_words = ''"),
    ]
    for fields, message in cases:
        with pytest.raises(InvalidRequestError, match=message):
            GenerationRequest("a", **fields)
