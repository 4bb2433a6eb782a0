"""Training: the draft's law is drawn towards the target's, on text that the target wrote.

First by KL(p || q), which has a gradient everywhere; later also by 1 - sum_v min(p, q), which is what a rejected
draft costs, at the temperature the text was written at.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.distillation.corpus import Corpus, Sequence
from pipeline.distillation.student import Student

GREEDY_TEMPERATURE = 0.4  # stands for 0, where 1 - sum min(p, q) has no gradient
OVERLAP_FROM = 0.4  # share of the training time after which the overlap enters
OVERLAP_WEIGHT = 0.8  # at the end, of 1
WARM_UP_STEPS = 50
STALL_S = 30.0  # a step that takes longer, and much longer than others, did not run all that time
AVERAGE_KEPT = 0.99  # per step: weights are averaged over about 100 steps


@dataclass(frozen=True)
class TrainingOptions:
    """How to train.

    Attributes:
        seconds: training time; time in which the process was stopped is not counted.
        steps: where training ends if its time is not over before; None sets no limit.
        rate: peak learning rate.
        batch_tokens: tokens of a step, prompts and padding included.
        seed: of the order of texts.
    """

    seconds: float
    steps: int | None = None
    rate: float = 1e-3
    batch_tokens: int = 4096
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """Texts side by side.

    Attributes:
        tokens: [rows, n] int64, padded behind.
        rows, columns: [m] int64: where a hidden state predicts an output token.
        places: [m, TOP] int64: where in the draft's head the target's top tokens are, -1 where they are not.
        log_probs: [m, TOP] FP32, the target's at temperature 1.
        temperatures: [m] FP32.
    """

    tokens: Tensor
    rows: Tensor
    columns: Tensor
    places: Tensor
    log_probs: Tensor
    temperatures: Tensor

    @classmethod
    def of(cls, sequences: list[Sequence], student: Student) -> Batch:
        device = student.places.device
        tokens = torch.zeros(len(sequences), max(s.tokens.numel() for s in sequences), dtype=torch.int64)
        rows, columns, temperatures = [], [], []
        for row, s in enumerate(sequences):
            tokens[row, : s.tokens.numel()] = s.tokens
            count = s.tokens.numel() - s.prompt_length
            rows.append(torch.full((count,), row))
            columns.append(torch.arange(s.prompt_length - 1, s.tokens.numel() - 1))
            temperatures.append(torch.full((count,), s.temperature))
        top_ids = torch.cat([s.top_ids for s in sequences]).long().to(device)
        return cls(
            tokens.to(device),
            torch.cat(rows).to(device),
            torch.cat(columns).to(device),
            student.places[top_ids],
            torch.cat([s.top_log_probs for s in sequences]).float().to(device),
            torch.cat(temperatures).to(device),
        )


@dataclass(frozen=True)
class Step:
    """What a step reports.

    Attributes:
        number, seconds, tokens: steps, training time and token visits so far.
        divergence: mean KL(p || q).
        overlap: mean sum_v min(p, q); 0 until it enters the loss.
    """

    number: int
    seconds: float
    divergence: float
    overlap: float
    tokens: int


def divergence(student: Student, hidden: Tensor, batch: Batch) -> Tensor:
    """Mean KL(p || q) at temperature 1, over the target's top tokens that the draft's head has."""
    log_q = student.log_law(hidden).gather(1, batch.places.clamp(min=0))  # [m, TOP]
    p = batch.log_probs.exp() * (batch.places >= 0)
    return (p * (batch.log_probs - log_q)).sum(-1).mean()


def overlap(student: Student, hidden: Tensor, batch: Batch) -> Tensor:
    """Mean of sum_v min(p, q), at each text's temperature; tokens that the draft's head has not count as lost."""
    scale = torch.where(batch.temperatures > 0, batch.temperatures, GREEDY_TEMPERATURE)
    q = student.log_law(hidden, scale).gather(1, batch.places.clamp(min=0)).exp()
    sharper = batch.log_probs / scale[:, None]
    mass = torch.where(scale[:, None] < 1, sharper.logsumexp(-1, keepdim=True), 0.0)
    p = (sharper - mass).exp() * (batch.places >= 0)
    return torch.minimum(p, q).sum(-1).mean()


class Trainer:
    """Trains a student on a corpus.

    Args:
        student: is trained in place.
        corpus: grows while it is trained if `refresh` is called with a larger one.
    """

    def __init__(self, student: Student, corpus: Corpus, options: TrainingOptions) -> None:
        self.student = student
        self._corpus = corpus
        self._options = options
        self._random = random.Random(options.seed)
        matrices = [p for p in student.parameters() if p.dim() > 1]
        vectors = [p for p in student.parameters() if p.dim() == 1]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.95), fused=True)
        self._average = [p.detach().clone() for p in student.parameters()]
        self.steps = 0
        self.seconds = 0.0
        self.tokens = 0

    def run(self, report: Callable[[Step], None]) -> None:
        """Train until the time is over; the student then has the averaged weights."""
        batches = self._batches()
        usual = math.inf
        while self._share() < 1:
            started = time.monotonic()
            batch = next(batches)
            far, near = self._step(batch)
            passed = time.monotonic() - started
            # The process may be stopped from outside for a while; the schedule must not jump over what it missed.
            usual = passed if self.steps == 1 else min(usual * 1.1, passed)
            self.seconds += min(passed, max(20 * usual, STALL_S))
            self.tokens += batch.rows.numel()
            report(Step(self.steps, self.seconds, far, near, self.tokens))
        self.take_average()

    def take_average(self) -> None:
        """Give the student the averaged weights, which are better than the last ones."""
        with torch.no_grad():
            for parameter, average in zip(self.student.parameters(), self._average, strict=True):
                parameter.copy_(average)

    def averaged(self) -> Iterator[None]:
        """For `with contextmanager(...)`: the averaged weights for a while."""
        kept = [p.detach().clone() for p in self.student.parameters()]
        self.take_average()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, old in zip(self.student.parameters(), kept, strict=True):
                    parameter.copy_(old)

    def _share(self) -> float:
        """How much of the training is done, 0 to 1."""
        options = self._options
        return min(1.0, max(self.seconds / options.seconds, self.steps / options.steps if options.steps else 0.0))

    def _step(self, batch: Batch) -> tuple[float, float]:
        share = self._share()
        rate = self._options.rate * min(1.0, (self.steps + 1) / WARM_UP_STEPS)
        rate *= 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        weight = OVERLAP_WEIGHT * min(max(share - OVERLAP_FROM, 0.0) / (0.8 - OVERLAP_FROM), 1.0)
        hidden = self.student(batch.tokens)[batch.rows, batch.columns]
        far = divergence(self.student, hidden, batch)
        near = torch.zeros(())
        loss = (1 - weight) * far
        if weight > 0:
            near = overlap(self.student, hidden, batch)
            # Twice: the sum over |p - q| / 2 has half the divergence's gradient.
            loss = loss + 2 * weight * (1 - near)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self._optimizer.step()
        self.steps += 1
        kept = min(AVERAGE_KEPT, self.steps / (self.steps + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self._average, list(self.student.parameters()), 1 - kept)
        return far.item(), near.item()

    def _batches(self) -> Iterator[Batch]:
        """Endless; neighbours in length are padded least, so texts are sorted within large shuffled groups."""
        while True:
            order = list(self._corpus.sequences)
            self._random.shuffle(order)
            for first in range(0, len(order), 512):
                group = sorted(order[first : first + 512], key=lambda s: s.tokens.numel())
                packed: list[list[Sequence]] = [[]]
                for sequence in group:
                    if (len(packed[-1]) + 1) * sequence.tokens.numel() > self._options.batch_tokens and packed[-1]:
                        packed.append([])
                    packed[-1].append(sequence)
                self._random.shuffle(packed)
                for sequences in packed:
                    yield Batch.of(sequences, self.student)

    def refresh(self, corpus: Corpus) -> None:
        """Go on with another corpus from the next pass over the texts on."""
        self._corpus = corpus
