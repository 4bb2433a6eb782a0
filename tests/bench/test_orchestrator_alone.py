"""The orchestrator bench counts what the orchestrator did: by hand, and the same whoever drives it."""

from __future__ import annotations

from dataclasses import asdict
from io import StringIO
from typing import cast

import pytest
from rich.console import Console

from pipeline.bench import orchestrator_alone as module
from pipeline.bench.orchestrator_alone import AlonePoint, is_flat, measure_alone
from pipeline.bench.scripted import MAX_DRAFT_LEN, WRONG_EVERY, scripted_orchestrator
from pipeline.client.bench_orchestrator import print_alone
from pipeline.orchestrator.request import GenerationRequest
from pipeline.spec import ControllerSpec
from pipeline.text.tokenizer import Tokenizer


class ByteTokenizer:
    """Token = byte."""

    byte_fallback = False
    special_ids: frozenset[int] = frozenset()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def token(self, token_id: int) -> str | None:
        return chr(token_id)


TOKENIZER = cast(Tokenizer, ByteTokenizer())
TEXT = [*range(65, 91)]  # neighbours differ


def rounds_by_hand(prompt_tokens: int, k: int, max_tokens: int) -> int:
    """Round 0 commits one token; then K drafts, of which those before the first wrong place are kept."""
    rounds, length = 1, prompt_tokens + 1
    while length < prompt_tokens + max_tokens:
        remaining = prompt_tokens + max_tokens - length
        drafts = min(k, remaining - 1)
        kept = next((i for i in range(drafts) if (length + i) % WRONG_EVERY == 0), drafts)
        length += kept + 1
        rounds += 1
    return rounds


@pytest.mark.parametrize("k", [1, 4, MAX_DRAFT_LEN])
def test_scripted_rounds_are_those_counted_by_hand(k: int) -> None:
    spec = ControllerSpec(kind="fixed", k=k)
    orchestrator = scripted_orchestrator(TOKENIZER, TEXT, 128, 1, spec)
    prompt = "hello there"
    chunks = list(orchestrator.generate(GenerationRequest(prompt, 60, stream=True, exclude_input_in_output=True)))
    told = chunks[-1].statistics
    assert told is not None
    expected = [TEXT[place % len(TEXT)] for place in range(len(prompt), len(prompt) + 60)]
    assert [token for chunk in chunks for token in chunk.token_ids] == expected, "what the target says, whatever K"
    assert told.rounds == rounds_by_hand(len(prompt), k, 60)
    assert 0 < told.num_accepted_draft_tokens < told.num_draft_tokens


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("in_flight", [1, 3, 8])
def test_every_driver_does_the_same_work(monkeypatch: pytest.MonkeyPatch, in_flight: int, threads: bool) -> None:
    monkeypatch.setattr(module, "PROMPT", "A prompt. ")
    point = measure_alone(TOKENIZER, ControllerSpec(kind="fixed", k=4), in_flight, threads, 8, 40)
    expected = sum(rounds_by_hand(len(f"Request {number}. A prompt. "), 4, 40) for number in range(8))
    assert (point.rounds, point.tokens, point.requests) == (expected, 8 * 40, 8)
    assert point.in_flight == in_flight and point.driver == ("threads" if threads else "one thread")
    assert point.rounds_per_cpu_s > 0 and point.rounds_per_s > 0
    if threads:
        assert point.bytes_per_request is None
    else:
        # A request holds at least its prompt's ids and text, and nothing like a megabyte.
        assert point.bytes_per_request is not None and 1_000 < point.bytes_per_request < 200_000


def test_the_weight_of_a_request_grows_with_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for repeats in (1, 400):
        monkeypatch.setattr(module, "PROMPT", "abc " * repeats)
        point = measure_alone(TOKENIZER, ControllerSpec(kind="fixed", k=4), 4, False, 4, 40)
        assert point.bytes_per_request is not None
        weights.append(point.bytes_per_request)
    assert weights[1] - weights[0] > 8 * 4 * 399, "a pointer per token of the longer prompt at least"


def points(*speeds: float) -> list[AlonePoint]:
    return [AlonePoint("one thread", "fixed", 4**i, 8, 80, 320, speed, speed, 1e4) for i, speed in enumerate(speeds)]


def test_flat_means_no_slower_than_the_first() -> None:
    assert is_flat(points(100.0, 91.0, 300.0), 0.1)
    assert not is_flat(points(100.0, 100.0, 89.0), 0.1)


def test_the_table_says_what_is_not_flat() -> None:
    console = Console(file=StringIO(), width=120)
    print_alone(console, points(100.0, 50.0))
    said = cast(StringIO, console.file).getvalue()
    assert "one thread, fixed: not flat; the slowest has 0.50" in said
    assert "4.00" in said and "10.0" in said, "tokens per round, KB per request"
    assert asdict(points(1.0)[0])["bytes_per_request"] == 1e4
