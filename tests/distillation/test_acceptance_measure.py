"""Acceptance: replayed rounds against rounds that are really played, and the two ends of the scale."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_target import LAYERS

from pipeline.distillation.acceptance import DRAFTED, Acceptance, compare, measure
from pipeline.distillation.corpus import sequence_of
from pipeline.distillation.llama import Llama
from pipeline.distillation.student import Student
from pipeline.distillation.writer import Job, Target, Writer
from pipeline.engine.weights import CheckpointReader

CPU = torch.device("cpu")


def test_a_model_accepts_itself(target_folder: Path) -> None:
    target = Target(target_folder, CPU, 64, torch.float32)
    whole = Llama(target.config, CheckpointReader(target_folder), list(range(LAYERS)), 64)
    student = Student(target, whole, list(range(target.config.vocab_size)), target.config.vocab_size)
    jobs = [Job("a", [5, 6, i + 7], t, 20) for i, t in enumerate((0.0, 0.7, 1.0))]
    texts = [sequence_of(text) for text in Writer(target, 3, 0).write(iter(jobs))]
    for cell in measure(target, student, texts).values():
        assert cell.rate == pytest.approx(1.0, abs=1e-4)
        assert cell.conditional == pytest.approx([1.0] * DRAFTED, abs=1e-4)
        # The last round of a text may end before its bonus.
        assert cell.acceptance_length == pytest.approx(1 + DRAFTED, abs=0.6)


def test_replayed_rounds_are_those_of_greedy_decoding() -> None:
    rng = random.Random(0)
    matches = [float(rng.random() < 0.6) for _ in range(200)]
    cell = Acceptance()
    cell.add(torch.tensor(matches), torch.tensor(matches))
    reached, accepted, position = [0] * DRAFTED, [0] * DRAFTED, 0
    while position < len(matches):
        for i in range(DRAFTED):
            if position >= len(matches):
                break
            reached[i] += 1
            position += 1
            if not matches[position - 1]:
                break
            accepted[i] += 1
        else:
            position += 1
    assert cell.reached == pytest.approx(reached)
    assert cell.accepted == pytest.approx(accepted)


def test_chances_are_those_of_rejection_sampling() -> None:
    """Over outcomes drawn from p, min(1, q / p) averages to the sum of min(p, q)."""
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(1, 12, generator=generator) * 2, torch.randn(1, 8, generator=generator) * 2
    head = torch.tensor([1, 3, 4, 6, 7, 9, 10, 11])
    for temperature in (0.7, 1.0):
        law = (p / temperature).softmax(-1)[0]
        every = torch.arange(12)
        overlap, chance = compare(p.expand(12, -1), q.expand(12, -1), head, every, temperature)
        assert float((law * chance).sum()) == pytest.approx(float(overlap[0]), abs=1e-6)


def test_greedy_is_a_matter_of_equal_argmax() -> None:
    p = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])
    q = torch.tensor([[5.0, 0.0], [5.0, 0.0]])
    overlap, chance = compare(p, q, torch.tensor([1, 2]), torch.tensor([1, 0]), 0.0)
    assert overlap.tolist() == [1.0, 0.0] == chance.tolist()


def test_a_token_outside_the_head_is_never_accepted(target_folder: Path) -> None:
    target = Target(target_folder, CPU, 64, torch.float32)
    config = replace(target.config, num_layers=1)
    student = Student(target, Llama(config, CheckpointReader(target_folder), [0], 64), [90, 91, 92], 3)
    (text,) = Writer(target, 1, 0).write(iter([Job("a", [5, 6], 0.0, 12)]))
    cell = measure(target, student, [sequence_of(text)])["a", 0.0]
    assert cell.rate <= sum(token >= 90 for token in text.output) / len(text.output)
