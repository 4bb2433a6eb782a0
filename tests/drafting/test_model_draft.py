"""What a draft model is asked, and what becomes of its answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from pipeline.drafting.base import Draft, DraftContext, Drafter, DraftSession, Offer
from pipeline.drafting.hybrid import HybridDrafter
from pipeline.drafting.model import ModelDrafter
from pipeline.drafting.ngram import NgramDrafter
from pipeline.drafting.none import NoDrafter
from pipeline.engine.manifest import Capabilities, CostTable, Limits, Manifest
from pipeline.engine.step import FloatArray, StepModel, StepRequest, StepResult
from pipeline.errors import StepError, StepTimeoutError
from pipeline.sampling.params import GREEDY, OPTIONS, PENALTIES, WORDS, SamplingParams, tensorrt_divisor
from pipeline.sampling.random import call_seed

VOCAB = 5
LOGITS: FloatArray = np.array([[0.0, 1.0, 2.0, -1.0, 0.5], [1.0, 0.0, 0.0, 0.0, -2.0]], np.float32)
WARM = SamplingParams(0.5, 20, 0.9)


def manifest(
    options: Sequence[str] = ("temperature",),
    logits: Literal["raw", "log_law"] = "raw",
    max_seq_len: int = 20,
    rules: Sequence[str] = (),
) -> Manifest:
    return Manifest(
        version=1,
        role="draft",
        engine="embedded",
        model="scripted",
        source_sha256="",
        dtype="float32",
        vocab_size=VOCAB,
        padded_vocab_size=VOCAB,
        end_id=4,
        files={},
        limits=Limits(max_seq_len=max_seq_len, max_draft_len=0, max_requests=1, kv_blocks=9, tokens_per_block=8),
        capabilities=Capabilities(
            rules=tuple(rules),
            draft_options=tuple(options),
            generation_logits=logits,
            log_probs=False,
            drops_drafts=False,
            deterministic=True,
        ),
        cost=CostTable(context_tokens=1, seconds_by_tokens={1: 0.01}),
        built_with={},
    )


class Answers(StepModel):
    """Gives one answer to every call."""

    def __init__(self, result: StepResult | None) -> None:
        self._result = result
        self.calls: list[StepRequest] = []

    def submit(self, request: StepRequest) -> Future[StepResult]:
        self.calls.append(request)
        future: Future[StepResult] = Future()
        if self._result is not None:
            future.set_result(self._result)
        return future

    def stop(self, request_id: str) -> None: ...

    def close(self) -> None: ...


def start(
    model: Answers,
    sampling: SamplingParams = WARM,
    deadline_s: float = 5.0,
    rule: str = "auto",
    greedy: bool = False,
    **options: Any,
) -> DraftSession:
    context = DraftContext("r", (1, 2, 3), sampling, seed=77, rule=rule, arrival=6)
    return ModelDrafter(model, manifest(**options), deadline_s, greedy).start(context)


def propose(session: DraftSession, k: int = 2, round_index: int = 3) -> Draft:
    return session.propose(session.offers(k)[0], k, round_index)


def test_what_is_sent() -> None:
    """The committed text, K, a seed of the draft's own, the order of arrival; no end_id and no drafts."""
    model = Answers(StepResult((2, 0), generation_logits=LOGITS))
    session = start(model)
    session.extend((4, 0))
    propose(session)
    (call,) = model.calls
    assert (call.input_ids, call.max_new_tokens, call.arrival) == ((1, 2, 3, 4, 0), 2, 6)
    assert (call.end_id, call.draft_ids, call.draft_logits, call.min_tokens) == (None, (), None, 0)
    assert call.seed == call_seed(77, 3, "draft") != call_seed(77, 3, "target")
    assert call.return_logits and call.request_id == "r/draft/3"


EVERYTHING = SamplingParams(
    temperature=0.5,
    top_k=20,
    top_p=0.9,
    min_p=0.1,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=-0.4,
    logit_bias=((1, 2.0),),
    bad_words=((2, 3),),
)
PENALISED = replace(EVERYTHING, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("temperature",), SamplingParams(0.5)),
        (("temperature", "top_k"), SamplingParams(0.5, 20)),
        (("temperature", "top_k", "top_p"), WARM),
        (("temperature", *PENALTIES, *WORDS), replace(EVERYTHING, top_k=0, top_p=1.0, min_p=0.0)),
        (OPTIONS, EVERYTHING),
        (("top_k", "top_p"), GREEDY),  # it cannot be told the temperature: a one-hot q is still exact
        ((), GREEDY),
    ],
)
def test_options_that_the_draft_knows(options: Sequence[str], expected: SamplingParams) -> None:
    """An engine is sent no option beyond its draft_options; q may differ from p, the text's law does not."""
    model = Answers(StepResult((2, 0), generation_logits=LOGITS))
    draft = propose(start(model, EVERYTHING, options=options, logits="log_law"))
    assert model.calls[0].sampling == expected
    assert (draft.logits is None) == expected.greedy == (not model.calls[0].return_logits)


def test_raw_logits_tell_no_more_than_the_temperature() -> None:
    """Where laws are made of raw logits, an option that the engine applied to them would be missing in q."""
    model = Answers(StepResult((2, 0), generation_logits=LOGITS))
    propose(start(model, EVERYTHING, options=OPTIONS, logits="raw"))
    assert model.calls[0].sampling == SamplingParams(0.5)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(0.7, 1), SamplingParams(0.0, 5, 0.5)])
def test_greedy_needs_no_laws(sampling: SamplingParams) -> None:
    """temperature 0 or top_k 1: the draft is greedy, its q one-hot, and no logits cross."""
    model = Answers(StepResult((2, 0), generation_logits=LOGITS))
    draft = propose(start(model, sampling))
    assert model.calls[0].sampling == GREEDY and not model.calls[0].return_logits
    assert (draft.source, draft.ids, draft.logits) == ("model", (2, 0), None)


@pytest.mark.parametrize("rule", ["auto", "block", "token", "match", "coupled"])
@pytest.mark.parametrize("logits", ["raw", "log_law"])
def test_greedy_drafts_by_deployment(rule: str, logits: Literal["raw", "log_law"]) -> None:
    """`draft.sampling: greedy` takes the best token under the request's penalties, under every rule."""
    model = Answers(StepResult((2, 0), generation_logits=LOGITS))
    draft = propose(start(model, EVERYTHING, rule=rule, greedy=True, options=OPTIONS, logits=logits))
    assert model.calls[0].sampling == PENALISED and PENALISED.greedy
    assert draft.logits is None and not model.calls[0].return_logits


def test_rules_that_need_no_law() -> None:
    """match and coupled compare tokens: the draft samples as ever, and K laws stay where they are."""
    for rule, needs in (("block", True), ("token", True), ("match", False), ("coupled", False)):
        model = Answers(StepResult((2, 0), generation_logits=LOGITS))
        draft = propose(start(model, EVERYTHING, rule=rule, options=OPTIONS, logits="log_law"))
        assert model.calls[0].sampling == EVERYTHING
        assert (draft.logits is not None) == model.calls[0].return_logits == needs


def test_coupled_drafts_share_the_noise() -> None:
    """The answer's own seed in every round, for an engine that knows the rule; another draws as it can."""
    for rules, seeds, sent in (
        (("coupled", "block"), [77, 77], "coupled"),
        (("block",), [call_seed(77, 3, "draft"), call_seed(77, 4, "draft")], "auto"),
    ):
        model = Answers(StepResult((2, 0)))
        session = start(model, rule="coupled", rules=rules, options=OPTIONS, logits="log_law")
        propose(session, round_index=3)
        propose(session, round_index=4)
        assert [call.seed for call in model.calls] == seeds
        assert [call.rule for call in model.calls] == [sent, sent]


def test_log_laws_go_as_they_are() -> None:
    """An engine that returns the law itself returns what the target needs."""
    draft = propose(start(Answers(StepResult((2, 0), generation_logits=LOGITS)), logits="log_law"))
    assert draft.logits is not None and np.array_equal(draft.logits, LOGITS)


def test_raw_logits_are_divided_by_the_temperature() -> None:
    """So that their plain softmax is the law the draft sampled from: temperature alone, T + 1e-6."""
    draft = propose(start(Answers(StepResult((2, 0), generation_logits=LOGITS)), logits="raw"))
    assert draft.logits is not None and draft.logits.dtype == np.float32
    np.testing.assert_allclose(draft.logits, LOGITS / (0.5 + 1e-6), rtol=1e-6)
    assert [tensorrt_divisor(temperature) for temperature in (0.5, 1.0)] == [0.5 + 1e-6, 1.0]


def test_more_than_was_asked_is_cut_and_less_is_taken() -> None:
    """Laws and tokens stay aligned."""
    session = start(Answers(StepResult((2, 0), generation_logits=LOGITS)), logits="log_law")
    shorter = propose(session, k=1)
    assert shorter.ids == (2,) and shorter.logits is not None and len(shorter.logits) == 1
    longer = propose(session, k=5)
    assert longer.ids == (2, 0) and longer.logits is not None and len(longer.logits) == 2


def test_the_drafts_context_ends_its_offers() -> None:
    """A text that outgrows the draft's context goes on without it."""
    session = start(Answers(None), max_seq_len=6)
    assert session.offers(8) == (Offer("model", "model", 3),)
    assert session.offers(2) == (Offer("model", "model", 2),)
    assert session.offers(0) == ()
    session.extend((1, 1))
    assert session.offers(8) == (Offer("model", "model", 1),)
    session.extend((1,))
    assert session.offers(8) == ()


@pytest.mark.parametrize(
    "result", [StepResult(()), StepResult((2, 0)), StepResult((2, 0), generation_logits=LOGITS[:1])]
)
def test_an_answer_that_cannot_be_used(result: StepResult) -> None:
    """No token, or not a law per token, is the draft's failure."""
    with pytest.raises(StepError, match="the draft returned no"):
        propose(start(Answers(result)))


def test_a_deadline() -> None:
    """A draft that never answers is given up."""
    with pytest.raises(StepTimeoutError, match=r"the draft did not answer within 0\.01 s"):
        propose(start(Answers(None), deadline_s=0.01))


class Offers(Drafter):
    """A source with one offer that tells who proposed."""

    def __init__(self, name: str, token: int) -> None:
        self.offer, self.token = Offer(name, name, 4), token
        self.seen: list[int] = []

    def start(self, context: DraftContext) -> DraftSession:
        return _OffersSession(self)


class _OffersSession(DraftSession):
    def __init__(self, owner: Offers) -> None:
        self._owner = owner

    def extend(self, tokens: Sequence[int]) -> None:
        self._owner.seen.extend(tokens)

    def offers(self, limit: int) -> tuple[Offer, ...]:
        return (self._owner.offer,) if limit else ()

    def propose(self, offer: Offer, k: int, round_index: int) -> Draft:
        assert offer.key == self._owner.offer.key
        return Draft(offer.source, (self._owner.token,) * k)


def test_hybrid() -> None:
    """Offers side by side in the drafters' order; each is drafted by who made it; all see the text."""
    first, second = Offers("a", 1), Offers("b", 2)
    session = HybridDrafter([first, second]).start(DraftContext("r", (1,), GREEDY, 0))
    assert session.offers(4) == (first.offer, second.offer)
    assert session.propose(second.offer, 2, 0).ids == (2, 2)
    assert session.propose(first.offer, 3, 0).ids == (1, 1, 1)
    capped = dataclasses.replace(second.offer, max_k=1)  # as a governor does
    assert session.propose(capped, 1, 0).ids == (2,)
    session.extend((5, 6))
    assert first.seen == second.seen == [5, 6]
    assert session.offers(0) == ()


def test_hybrid_of_look_up_and_model() -> None:
    """Look-up comes first where it has a match, else the model is alone."""
    model = Answers(StepResult((4,)))
    hybrid = HybridDrafter([NgramDrafter(2, 4), ModelDrafter(model, manifest(), 5.0)])
    session = hybrid.start(DraftContext("r", (1, 2, 3), GREEDY, 0))
    assert [offer.key for offer in session.offers(3)] == ["model"]
    session.extend((1, 2))
    lookup, other = session.offers(3)
    assert (lookup.key, other.key) == ("ngram-2", "model")
    assert session.propose(lookup, 3, 0).ids == (3, 1, 2) and not model.calls
    assert session.propose(other, 1, 0).ids == (4,)


def test_no_draft() -> None:
    """Plain decoding has no offers."""
    session = NoDrafter().start(DraftContext("r", (1, 1, 1, 1), GREEDY, 0))
    session.extend((1,))
    assert session.offers(8) == ()
