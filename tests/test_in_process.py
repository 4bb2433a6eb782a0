"""The whole pipeline in one process: greedy text with speculation is the text without it, alone and in company."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import pytest
from in_process_support import Deployment, Setting, deploy, exact_text

from pipeline.orchestrator.request import Chunk, GenerationRequest

PROMPTS = ("abc", "hello", "thequickbrownfox", "yy", "abcabcabcabc")
FIXED = [(("kind", "fixed"), ("k", k)) for k in (1, 2, 3, 5, 8)]
CONTROLLERS = [*FIXED, (("kind", "goodput"),), (("kind", "heuristic"), ("k", 2))]
LENGTH = 40


def ask(deployment: Deployment, prompt: str, **changes: Any) -> Chunk:
    fields: dict[str, Any] = {"max_tokens": LENGTH, "exclude_input_in_output": True, **changes}
    return list(deployment.orchestrator.generate(GenerationRequest(prompt, **fields)))[-1]


@lru_cache
def plain(prompt: str, max_tokens: int = LENGTH) -> tuple[str, str]:
    """Text and finish reason of plain decoding, computed token by token from whole passes, without a KV cache."""
    return exact_text(Setting(), prompt, max_tokens)


@pytest.mark.parametrize("kind", ["model", "ngram", "hybrid"])
@pytest.mark.parametrize("controller", CONTROLLERS, ids=lambda fields: "-".join(str(value) for _, value in fields))
def test_greedy_text_is_that_of_plain_decoding(controller: tuple[tuple[str, Any], ...], kind: Any) -> None:
    """For every K, adaptive or not, and every draft; drafts are really accepted and rejected."""
    drafted = accepted = 0
    with deploy(Setting(kind, controller)) as deployment:
        for prompt in PROMPTS:
            chunk = ask(deployment, prompt)
            assert (chunk.text, chunk.finish_reason) == plain(prompt)
            assert chunk.statistics is not None
            drafted += chunk.statistics.num_draft_tokens
            accepted += chunk.statistics.num_accepted_draft_tokens
            deployment.check_integrity()
    if kind == "model" and controller in FIXED:  # what the others draft depends on time
        assert 0 < accepted < drafted


def test_plain_decoding() -> None:
    """No draft, K = 0 by request, and bursts: the same text; the texts differ and some end by EOS."""
    with deploy(Setting("none")) as without, deploy(Setting()) as with_draft:
        for prompt in PROMPTS:
            assert ask(without, prompt).text == ask(with_draft, prompt, num_draft_tokens=0).text == plain(prompt)[0]
    assert len({plain(prompt) for prompt in PROMPTS}) == len(PROMPTS)
    assert {plain(prompt)[1] for prompt in PROMPTS} == {"eos", "length"}


def test_a_bad_and_a_perfect_draft() -> None:
    """A draft that is the target itself is always right; one of noise never changes the text."""
    for noise, low, high in ((0.0, 0.99, 1.0), (3.0, 0.0, 0.3)):
        with deploy(Setting(noise=noise)) as deployment:
            chunk = ask(deployment, "abc")
            assert (chunk.text, chunk.finish_reason) == plain("abc")
            assert chunk.statistics is not None and low <= chunk.statistics.draft_acceptance_rate <= high


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 30])
def test_every_length(max_tokens: int) -> None:
    """The longest request of the context too: K shrinks towards the end."""
    with deploy(Setting(controller=(("kind", "fixed"), ("k", 8)), max_seq_len=3 + max_tokens, kv_blocks=14)) as small:
        chunk = ask(small, "abc", max_tokens=max_tokens)
        assert (chunk.text, chunk.finish_reason) == plain("abc", max_tokens)
        small.check_integrity()


def test_both_pools_bound_who_runs() -> None:
    """What is refused or waits is measured against the smaller pool, here the draft's."""
    with deploy(Setting(kv_blocks=64, draft_kv_blocks=44)) as deployment:
        assert deployment.orchestrator.admission._pool_blocks == 44
    with deploy(Setting("ngram", kv_blocks=64, draft_kv_blocks=44)) as deployment:
        assert deployment.orchestrator.admission._pool_blocks == 64


def test_a_prefix_is_computed_once() -> None:
    """Without eviction the target computes each committed token once, and the rejected drafts: nothing again."""
    with deploy(Setting()) as deployment:
        chunk = ask(deployment, "abcabcabcabc")
        statistics = chunk.statistics
        assert statistics is not None
        known = statistics.prompt_tokens + statistics.committed_tokens - 1
        rejected = statistics.num_draft_tokens - statistics.num_accepted_draft_tokens
        assert known <= statistics.target_computed_tokens <= known + rejected + statistics.rounds


def requests(count: int) -> Iterator[tuple[str, int]]:
    """Prompts of many lengths; some share a beginning."""
    alphabet = "abcdefghijklmnopqrstuvwxy"
    for i in range(count):
        yield alphabet[i % 7 : i % 7 + 1 + i % 11] + "abc" * (i % 3), 10 + 7 * i % 31


@pytest.mark.parametrize("kv_blocks", [256, 48], ids=["room", "eviction"])
@pytest.mark.parametrize("controller", [FIXED[3], (("kind", "goodput"),)], ids=["fixed", "goodput"])
def test_company_changes_nothing(controller: tuple[tuple[str, Any], ...], kv_blocks: int) -> None:
    """Requests of ragged lengths and acceptance, some cancelled, in threads: each has its solo text; the cache is
    sound afterwards, also where it is too small for all."""
    work = list(requests(36))
    setting = Setting("hybrid", controller, kv_blocks=kv_blocks, max_requests=12)
    solo = [plain(prompt, max_tokens) for prompt, max_tokens in work]

    def answer(item: tuple[int, tuple[str, int]]) -> tuple[str, str | None]:
        number, (prompt, max_tokens) = item
        request = GenerationRequest(prompt, max_tokens, stream=number % 2 == 0, exclude_input_in_output=True)
        looks = iter(range(10**6))
        chunks = list(deployment.orchestrator.generate(request, lambda: number % 9 == 4 and next(looks) == 2))
        return "".join(chunk.text for chunk in chunks), chunks[-1].finish_reason

    with deploy(setting) as deployment, ThreadPoolExecutor(16) as pool:
        together = list(pool.map(answer, enumerate(work)))
        deployment.check_integrity()
        assert deployment.orchestrator.admission.running == 0
    for number, ((text, reason), expected) in enumerate(zip(together, solo, strict=True)):
        if reason == "cancelled":
            assert number % 9 == 4 and expected[0].startswith(text)
        else:
            assert (text, reason) == expected


def test_a_draft_that_dies_in_the_middle() -> None:
    """Requests in flight go on without it, with the same text."""
    with deploy(Setting()) as deployment, ThreadPoolExecutor(4) as pool:
        assert deployment.draft is not None
        chunks = deployment.orchestrator.generate(GenerationRequest("abc", LENGTH, stream=True))
        text = "".join(next(chunks).text for _ in range(3))
        deployment.draft.close()
        others = pool.map(lambda prompt: ask(deployment, prompt), PROMPTS)
        text += "".join(chunk.text for chunk in chunks)
        assert text == plain("abc")[0]
        assert [chunk.text for chunk in others] == [plain(prompt)[0] for prompt in PROMPTS]
        assert deployment.orchestrator.draft_health.failures >= 1
