"""Every option over real engines in one process: greedy text, coupled text, log-probs, with speculation and without."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from in_process_support import Deployment, Setting, deploy
from option_reference import Reference

from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.sampling.params import SamplingParams

PROMPTS = ("abc", "hello", "thequickbrownfox", "abcabcabcabc")
LENGTH = 24
SETTING = Setting(controller=(("kind", "fixed"), ("k", 4)))
OPTION_SETS: dict[str, dict[str, Any]] = {
    "none": {},
    "repetition": {"sampling": SamplingParams(repetition_penalty=1.6)},
    "presence": {"sampling": SamplingParams(presence_penalty=1.1)},
    "frequency": {"sampling": SamplingParams(frequency_penalty=0.7)},
    "bias": {"embedding_bias": (("cz", 1.5), ("e", -2.0))},
    "bad words": {"bad_words": ("q", "ab", "xy", "mno")},
    "min_tokens": {"min_tokens": 17, "embedding_bias": (("z", 2.0),)},
    "all": {
        "sampling": SamplingParams(repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3),
        "embedding_bias": (("cz", 1.5), ("e", -2.0)),
        "bad_words": ("q", "ab"),
        "min_tokens": 9,
    },
}
DRAFTS = [("model", "q"), ("ngram", "q"), ("hybrid", "greedy")]
SAMPLED = SamplingParams(
    temperature=0.9, top_k=12, top_p=0.95, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.3,
    frequency_penalty=0.2,
)  # fmt: skip


def ask(deployment: Deployment, request: GenerationRequest) -> Chunk:
    return list(deployment.orchestrator.generate(request))[-1]


def request_of(prompt: str, options: dict[str, Any], **changes: Any) -> GenerationRequest:
    return GenerationRequest(prompt, exclude_input_in_output=True, **{"max_tokens": LENGTH, **options, **changes})


@pytest.mark.parametrize(("kind", "sampling"), DRAFTS)
def test_greedy_text_under_every_option(kind: Any, sampling: Any) -> None:
    """Text and reason are those of the definition, with speculation and without; drafts are kept and rejected."""
    texts: dict[str, set[str]] = {name: set() for name in OPTION_SETS}
    drafted = accepted = 0
    with deploy(SETTING.replace(kind=kind, draft_sampling=sampling, min_match=1)) as deployment:
        for (name, options), prompt in itertools.product(OPTION_SETS.items(), PROMPTS):
            request = request_of(prompt, options)
            expected = Reference(SETTING, request).greedy()
            for k in (None, 0, 3):
                chunk = ask(deployment, replace(request, num_draft_tokens=k))
                assert (chunk.text, chunk.finish_reason) == expected, (name, prompt, k)
                assert chunk.statistics is not None
                drafted += chunk.statistics.num_draft_tokens
                accepted += chunk.statistics.num_accepted_draft_tokens
            texts[name].add(expected[0])
        deployment.check_integrity()
    assert 0 < accepted < drafted
    for name in OPTION_SETS:
        assert name == "none" or texts[name] != texts["none"], f"{name} changes no text here"


def test_coupled_text_depends_on_the_seed_alone() -> None:
    """Any K, any draft, speculation on and off, in company: one text per seed, and the response says so."""
    texts: dict[tuple[str, int], set[str]] = {}
    cases = [("none", "q"), ("model", "q"), ("model", "greedy"), ("ngram", "q"), ("hybrid", "q")]
    for kind, sampling in cases:
        setting = SETTING.replace(kind=kind, draft_sampling=sampling, min_match=1)
        with deploy(setting) as deployment:
            for prompt, seed, k in itertools.product(PROMPTS[:2], (1, 2), (0, 2, 5)):
                options = {**OPTION_SETS["all"], "sampling": SAMPLED}
                chunk = ask(deployment, request_of(prompt, options, max_tokens=14, seed=seed, num_draft_tokens=k))
                texts.setdefault((prompt, seed), set()).add(chunk.text)
                assert chunk.statistics is not None and chunk.statistics.rule == "coupled"
                assert chunk.statistics.reproducible
    assert all(len(found) == 1 for found in texts.values()), texts
    assert len({text for found in texts.values() for text in found}) == 4


def test_coupled_drafts_meet_the_target() -> None:
    """The draft that shares the target's noise is kept more often than one that draws by itself."""
    rates = {}
    for rule in ("coupled", "match"):
        with deploy(SETTING) as deployment:
            drafted = accepted = 0
            for seed in range(12):
                request = request_of("hello", {}, sampling=SamplingParams(1.5), seed=seed, acceptance_rule=rule)
                statistics = ask(deployment, request).statistics
                assert statistics is not None
                drafted += statistics.num_draft_tokens
                accepted += statistics.num_accepted_draft_tokens
            rates[rule] = accepted / drafted
    assert rates["coupled"] > rates["match"] + 0.1, rates


@pytest.mark.parametrize("rule", ["block", "token", "match", "coupled"])
def test_log_probs_are_the_targets_own(rule: str) -> None:
    """Of every committed token, before any option, whatever K; those of rejected drafts are not there."""
    options = {**OPTION_SETS["all"], "sampling": SAMPLED}
    with deploy(SETTING) as deployment:
        for prompt, k in itertools.product(PROMPTS[:2], (0, 1, 4)):
            request = request_of(
                prompt, options, seed=3, num_draft_tokens=k, acceptance_rule=rule, return_log_probs=True
            )
            chunk = ask(deployment, request)
            reference = Reference(SETTING, request)
            ids = chunk.token_ids
            expected = [reference.log_prob(ids[:i], ids[i]) for i in range(len(ids))]
            assert chunk.log_probs == pytest.approx(expected, abs=1e-4)
            assert chunk.cum_log_prob == pytest.approx(sum(expected), abs=1e-3)
            assert chunk.statistics is not None
            assert (chunk.statistics.num_draft_tokens > chunk.statistics.num_accepted_draft_tokens) == (k > 0)


def test_several_answers_are_those_of_their_seeds() -> None:
    """The first is the request's own; all differ; each is what its seed alone gives."""
    with deploy(SETTING.replace()) as deployment:
        request = request_of("hello", {}, sampling=SamplingParams(1.0), seed=5, num_return_sequences=4)
        chunks = list(deployment.orchestrator.generate(request))
        assert [chunk.sequence_index for chunk in chunks] == [0, 1, 2, 3]
        assert len({chunk.text for chunk in chunks}) == 4
        for chunk in chunks:
            assert chunk.statistics is not None
            alone = ask(deployment, replace(request, seed=chunk.statistics.seed, num_return_sequences=1))
            assert alone.text == chunk.text


def test_stop_words_under_sampling() -> None:
    """Where the text is cut is where the uncut text has the word first, for every K under one seed."""
    with deploy(SETTING.replace()) as deployment:
        request = request_of("hello", {}, sampling=SamplingParams(1.2), seed=11, min_tokens=LENGTH)
        whole = ask(deployment, request).text
        assert len(whole) == LENGTH
        for start, k in itertools.product(range(1, 9), (0, 2, 4)):
            word = whole[start : start + 2]
            chunk = ask(deployment, replace(request, stop_words=("zzzz", word), num_draft_tokens=k))
            assert (chunk.text, chunk.finish_reason) == (whole[: whole.index(word)], "stop")


def test_requests_with_different_options_share_passes() -> None:
    """Twelve at once, each with options of its own: everybody gets the text it gets alone."""
    from concurrent.futures import ThreadPoolExecutor

    requests = [
        request_of(prompt, options, num_draft_tokens=k)
        for (prompt, k), options in zip(itertools.product(PROMPTS, (0, 2, 4)), itertools.cycle(OPTION_SETS.values()))
    ]
    with deploy(SETTING) as deployment, ThreadPoolExecutor(12) as pool:
        chunks = list(pool.map(lambda request: ask(deployment, request), requests))
        deployment.check_integrity()
    for request, chunk in zip(requests, chunks, strict=True):
        assert (chunk.text, chunk.finish_reason) == Reference(SETTING, request).greedy()
