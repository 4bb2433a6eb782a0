"""num_return_sequences: answers one after another, each with a seed of its own."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from pipeline.orchestrator.intake import sequence_seed
from pipeline.orchestrator.request import Chunk
from pipeline.sampling.params import SamplingParams

from .scripted import ask, make_rig

K = 4
SCRIPT = b"abcdefghijklmnopqrstuvw"
SAMPLED = SamplingParams(0.9)
EVERY_RULE = ("block", "token", "match", "coupled")


def answers(chunks: list[Chunk]) -> list[list[Chunk]]:
    return [list(group) for _, group in itertools.groupby(chunks, lambda chunk: chunk.sequence_index)]


@pytest.mark.parametrize("stream", [True, False])
def test_several_answers(stream: bool) -> None:
    """One after another, each with its own end, statistics and derived seed; the first is the request's own."""
    rig = make_rig(SCRIPT, k=2)
    request = ask(num_return_sequences=3, max_tokens=6, seed=9, sampling=SAMPLED, stream=stream,
                  exclude_input_in_output=True, return_log_probs=True)  # fmt: skip
    groups = answers(list(rig.orchestrator.generate(request)))
    assert len(groups) == 3
    seeds = []
    for group in groups:
        assert "".join(chunk.text for chunk in group) == "abcdef"
        assert [chunk.final for chunk in group] == [False] * (len(group) - 1) + [True]
        assert stream or len(group) == 1
        assert group[-1].statistics is not None and group[-1].cum_log_prob == -15.0
        seeds.append(group[-1].statistics.seed)
    assert seeds == [9, sequence_seed(9, 1), sequence_seed(9, 2)] and len(set(seeds)) == 3
    assert len({call.request_id for call in rig.target.calls}) == len(rig.target.calls)
    unseeded = answers(list(rig.orchestrator.generate(replace(request, seed=None))))
    assert len({group[-1].statistics.seed for group in unseeded if group[-1].statistics} | set(seeds)) == 6


def test_several_answers_cancelled() -> None:
    """Whoever waits for n ends gets n ends."""
    rig = make_rig(SCRIPT)
    polls = iter([False, False, False])
    chunks = list(rig.orchestrator.generate(ask(num_return_sequences=3), lambda: next(polls, True)))
    assert [chunk.sequence_index for chunk in chunks if chunk.final] == [0, 1, 2]
    assert all(chunk.finish_reason == "cancelled" for chunk in chunks if chunk.final)
    assert rig.orchestrator.admission.running == 0


def test_sequence_seeds() -> None:
    """64-bit, all different, and the first is the seed itself."""
    seeds = [sequence_seed(seed, i) for seed in (0, 1, 2**64 - 1) for i in range(64)]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**64 for seed in seeds)
    assert sequence_seed(7, 0) == 7
