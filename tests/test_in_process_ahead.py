"""Drafts made ahead with real engines: the texts of plain decoding, and of the seed alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from in_process_support import Deployment, Setting, deploy, exact_text

from pipeline.orchestrator.request import Chunk, GenerationRequest
from pipeline.sampling.params import SamplingParams

AHEAD = Setting(draft_ahead="on", noise=0.02)
WARM = SamplingParams(0.8)
PROMPTS = ("abcabd", "thequick", "zyxw", "mnop", "hello", "ababab")


def answers(deployment: Deployment, request: GenerationRequest, prompts: tuple[str, ...] = PROMPTS) -> list[Chunk]:
    """All at once."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(
            pool.map(lambda text: list(deployment.orchestrator.generate(replace(request, text_input=text))), prompts)
        )
    deployment.check_integrity()
    assert deployment.orchestrator.draft_health.failures == 0
    return [chunk for (chunk,) in found]


def ask(**changes: object) -> GenerationRequest:
    fields: dict[str, object] = {"text_input": "a", "max_tokens": 24, "end_id": -1, "exclude_input_in_output": True}
    return GenerationRequest(**{**fields, **changes})  # type: ignore[arg-type]


def used(chunks: list[Chunk]) -> int:
    return sum(chunk.statistics.drafts_ahead_used for chunk in chunks if chunk.statistics is not None)


def test_greedy_and_coupled_texts_are_those_of_plain_decoding() -> None:
    with deploy(AHEAD) as deployment, deploy(Setting("none")) as plain:
        for request in (ask(), ask(sampling=WARM, seed=5)):
            found = answers(deployment, request)
            assert [chunk.text for chunk in found] == [chunk.text for chunk in answers(plain, request)]
            assert used(found) > 3
    with deploy(AHEAD) as deployment:
        text, reason = exact_text(AHEAD, PROMPTS[0], 24)
        (chunk,) = answers(deployment, ask(end_id=None), PROMPTS[:1])
        assert (chunk.text, chunk.finish_reason) == (text, reason)


@pytest.mark.parametrize("rule", ["block", "token", "match"])
def test_a_seed_and_a_fixed_k_give_one_text_whatever_the_timing(rule: str) -> None:
    """Whether a draft made ahead is used follows from the tokens alone, never from who was faster."""
    request = ask(sampling=WARM, seed=7, num_draft_tokens=3, acceptance_rule=rule)
    with deploy(AHEAD) as deployment:
        together = answers(deployment, request)
        alone = [answers(deployment, request, (prompt,))[0] for prompt in PROMPTS]
    assert [chunk.text for chunk in together] == [chunk.text for chunk in alone]
    assert used(together) == used(alone) > 0
    assert all(chunk.statistics is not None and chunk.statistics.reproducible for chunk in alone)
