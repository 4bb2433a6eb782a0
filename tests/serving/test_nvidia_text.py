"""Whole answers through NVIDIA's interface: chi-square of seeded answers, in this process and through the real Triton.

Seeds are fixed. Over seeds, a test would raise a false alarm with probability below 1e-8: the statistics of the first
two and three tokens are each compared with a tail of 1e-10, and cells with fewer than 8 expected are pooled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chi_square import tail

from pipeline.drafting import model as model_draft
from pipeline.orchestrator import verifier
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.sampling.random import call_seed
from pipeline.serving.repository import RepositoryOptions, render_repository
from pipeline.serving.server import TritonServer
from pipeline.serving.server_options import ServerOptions

from .conftest import stop_and_check
from .nvidia_deployment import DRAFT, END, TARGET, Letters, Setting, other, write_stand_ins
from .nvidia_triton import HANGING_LENGTH
from .round_law import PROMPT, Law, continued, next_law
from .support import GrpcStream

TAIL = 1e-10
SAMPLES = 800
TEXT = Letters().decode(PROMPT)
OPTIONS = SamplingParams(0.8, 4, 0.95, presence_penalty=0.4, frequency_penalty=0.2)
PLAIN_OPTIONS = SamplingParams(1.0)
STRANGER = other(DRAFT, tilt=0.9)  # a draft whose law is far from the target's: what judges it matters


def right(length: int, sampling: SamplingParams = OPTIONS) -> Law:
    return continued({(): 1.0}, TARGET, sampling, 0, length, generated=())


def smallest_tail(found: list[tuple[int, ...]], sampling: SamplingParams = OPTIONS) -> float:
    return min(tail(found, right(length, sampling), length) for length in (2, 3))


def answers(setting: Setting, sampling: SamplingParams = OPTIONS, count: int = SAMPLES) -> list[tuple[int, ...]]:
    """Tokens of seeded answers, the end token where it came."""
    orchestrator = setting.orchestrator()
    found, accepted, drafted = [], 0, 0
    for seed in range(count):
        request = GenerationRequest(TEXT, 4, sampling, seed=seed, exclude_input_in_output=True)
        (chunk,) = orchestrator.generate(request)
        assert chunk.statistics is not None and chunk.statistics.rule == "token" and not chunk.statistics.reproducible
        accepted += chunk.statistics.num_accepted_draft_tokens
        drafted += chunk.statistics.num_draft_tokens
        found.append(chunk.token_ids if chunk.finish_reason == "length" else (*chunk.token_ids, END))
    assert not setting.k or count // 5 < accepted < drafted - count // 5, "drafts are kept and rejected"
    assert orchestrator.draft_health.failures == 0
    return found


@pytest.mark.parametrize("kind", ["model", "ngram", "hybrid"])
@pytest.mark.parametrize("k", [1, 2])
def test_answers_have_the_targets_law(kind: str, k: int) -> None:
    assert smallest_tail(answers(Setting(kind=kind, k=k))) > TAIL


@pytest.mark.parametrize(
    "broken",
    [
        {"max_input_len": 3},  # a context shorter than the target's
        {"vocab": 3, "padded": 3},  # without a token of the prompt
    ],
)
def test_a_draft_that_cannot_goes_without(broken: dict[str, int]) -> None:
    """The request is answered by the target alone, and says that its draft failed."""
    setting = Setting(k=2, draft=other(DRAFT, **broken))
    (chunk,) = setting.orchestrator().generate(GenerationRequest(TEXT, 4, exclude_input_in_output=True, end_id=-1))
    expected: tuple[int, ...] = ()
    while len(expected) < 4:
        expected += (max(next_law(TARGET, SamplingParams(), 0, expected)),)
    assert chunk.token_ids == expected and chunk.finish_reason == "length"
    assert chunk.statistics is not None and chunk.statistics.draft_failures == 1


def test_planted_one_seed_for_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine starts its generator anew for each request: the same numbers would choose every token."""
    assert smallest_tail(answers(Setting(k=0))) > TAIL
    monkeypatch.setattr(verifier, "call_seed", lambda seed, index, role: call_seed(seed, 0, role))
    assert smallest_tail(answers(Setting(k=0))) < TAIL / 1000


def test_planted_one_seed_for_draft_and_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft would be judged by the number that chose it."""
    setting = Setting(k=1, draft=STRANGER)
    assert smallest_tail(answers(setting, PLAIN_OPTIONS), PLAIN_OPTIONS) > TAIL
    monkeypatch.setattr(model_draft, "call_seed", lambda seed, index, role: call_seed(seed, index, "target"))
    assert smallest_tail(answers(setting, PLAIN_OPTIONS), PLAIN_OPTIONS) < TAIL / 1000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """The real Triton with NVIDIA's two models played by stand-ins, and the real orchestrator before them."""
    folder = tmp_path_factory.mktemp("nvidia")
    engines = folder / "engines"
    for role in ("target", "draft"):
        (engines / role).mkdir(parents=True)
    setting = Setting(k=2)
    spec = setting.spec().model_copy(
        update={"deadlines": setting.spec().deadlines.model_copy(update={"target_s": 1.0})}
    )
    options = RepositoryOptions(engines, orchestrator_factory="serving.nvidia_deployment:orchestrator")
    repository = render_repository(spec, folder / "repository", options)
    write_stand_ins(setting, engines, repository)
    env = {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    server = TritonServer(repository, engines, ServerOptions(env=env, exit_timeout_s=2, shm_bytes=4 << 20))
    server.start()
    try:
        server.wait_ready(90)
        yield server
    finally:
        stop_and_check(server)


BODY: dict[str, Any] = {
    "text_input": TEXT,
    "max_tokens": 4,
    "temperature": OPTIONS.temperature,
    "top_k": OPTIONS.top_k,
    "top_p": OPTIONS.top_p,
    "presence_penalty": OPTIONS.presence_penalty,
    "frequency_penalty": OPTIONS.frequency_penalty,
    "exclude_input_in_output": True,
}


@pytest.mark.served
def test_served_answers_have_the_targets_law(stream: GrpcStream) -> None:
    """Four hundred over gRPC, eight at a time, each with the text of its own seed."""
    found, drafted, accepted = [], 0, 0
    for first in range(0, SAMPLES // 2, 8):
        for seed in range(first, first + 8):
            stream.send({**BODY, "seed": seed}, f"r{seed}")
        for answer in stream.answers(8).values():
            assert answer.error is None
            (last,) = answer.outputs
            ended = last["finish_reason"] == [b"eos"]
            found.append((*last["token_ids"], END) if ended else tuple(last["token_ids"]))
            statistics = json.loads(last["spec_decode_stats"][0])
            drafted += statistics["num_draft_tokens"]
            accepted += statistics["num_accepted_draft_tokens"]
    assert len(found) == SAMPLES // 2 and smallest_tail(found) > TAIL
    assert 50 < accepted < drafted - 50


@pytest.mark.served
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_p": 0.5}, "[INVALID_ARGUMENT] min_p = 0.5: the target's engine cannot apply it"),
        ({"repetition_penalty": 1.5, "embedding_bias_words": ["a"], "embedding_bias_weights": 1.0}, "after the bias"),
        ({"top_k": 2000}, None),  # more than there are tokens: off
        ({"return_log_probs": True}, "no log-probabilities"),
    ],
)
def test_served_refusals(stream: GrpcStream, changes: dict[str, Any], message: str | None) -> None:
    answer = stream.ask({**BODY, **changes})
    assert answer.error is None if message is None else message in str(answer.error)


@pytest.mark.served
def test_a_call_past_its_deadline_is_stopped(served: TritonServer, stream: GrpcStream) -> None:
    """NVIDIA's stop under the call's own id ends it; Triton counts the hung call and its stop."""

    def ended() -> int:
        (counted,) = stream.client.get_inference_statistics("target").model_stats
        return int(counted.inference_stats.success.count)

    before = ended()
    hung = stream.ask({**BODY, "text_input": "a" * HANGING_LENGTH})
    assert "the target did not answer within 1 s; the call was abandoned" in str(hung.error)
    deadline = time.monotonic() + 10
    while ended() < before + 2:
        assert time.monotonic() < deadline, "the call still hangs"
        time.sleep(0.02)
    assert stream.ask(BODY).error is None
