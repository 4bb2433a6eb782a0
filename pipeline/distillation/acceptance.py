"""How much of a draft's proposals its target would accept, measured on texts the target wrote.

One pass over a text gives everything: given that the target commits x, a drafted token was accepted there with
probability min(1, q(x) / p(x)), so the rounds of speculative decoding can be replayed in expectation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.distillation import corpus
from pipeline.distillation.llama import causal
from pipeline.distillation.student import Student
from pipeline.distillation.writer import Target
from pipeline.sampling.laws import laws
from pipeline.sampling.params import SamplingParams

DRAFTED = 4  # tokens drafted per replayed round
CHUNK = 512  # positions whose whole laws are in memory at a time


@dataclass
class Acceptance:
    """Sums over output tokens.

    Attributes:
        tokens: output tokens measured.
        overlap: sum of sum_v min(p, q); at temperature 0, of equal argmax.
        reached, accepted: per draft position 1 to DRAFTED, expected counts over replayed rounds.
    """

    tokens: int = 0
    overlap: float = 0.0
    reached: list[float] = field(default_factory=lambda: [0.0] * DRAFTED)
    accepted: list[float] = field(default_factory=lambda: [0.0] * DRAFTED)

    @property
    def rate(self) -> float:
        """Acceptance per token of a draft that is asked at every position."""
        return self.overlap / max(self.tokens, 1)

    @property
    def conditional(self) -> list[float]:
        """Accepted at position i among rounds that reached i."""
        return [a / r if r else 0.0 for a, r in zip(self.accepted, self.reached, strict=True)]

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per round of DRAFTED drafts, correction or bonus included."""
        return 1 + sum(self.accepted) / self.reached[0] if self.reached[0] else 1.0

    def add(self, overlaps: Tensor, accepted: Tensor) -> None:
        """Count one text: both [n], per output token; `accepted` is the probability that the committed token was it."""
        self.tokens += overlaps.numel()
        self.overlap += float(overlaps.sum())
        chances = accepted.tolist()
        starts = [0.0] * (len(chances) + DRAFTED + 1)
        starts[0] = 1.0
        for first in range(len(chances)):
            alive = starts[first]
            for i in range(DRAFTED):
                if first + i >= len(chances):
                    break
                self.reached[i] += alive
                kept = alive * chances[first + i]
                self.accepted[i] += kept
                starts[first + i + 1] += alive - kept  # the correction is committed there, the next round follows
                alive = kept
            else:
                starts[first + DRAFTED + 1] += alive  # behind the bonus


def total(parts: Iterable[Acceptance]) -> Acceptance:
    """The sum of several."""
    result = Acceptance()
    for part in parts:
        result.tokens += part.tokens
        result.overlap += part.overlap
        result.reached = [a + b for a, b in zip(result.reached, part.reached, strict=True)]
        result.accepted = [a + b for a, b in zip(result.accepted, part.accepted, strict=True)]
    return result


Table = dict[tuple[str, float], Acceptance]
"""By (kind, temperature)."""


@torch.inference_mode()
def measure(target: Target, student: Student, sequences: Sequence[corpus.Sequence]) -> Table:
    """Acceptance on texts of the target, with both laws over the whole vocabulary.

    The student's law is that of its reduced head. Laws are those of the target as it is now, so a target loaded in
    FP32 corrects what a corpus written in BF16 says.
    """
    table: Table = {}
    for sequence in sequences:
        tokens = sequence.tokens.to(target.device)[None]
        first = sequence.prompt_length
        positions = torch.arange(tokens.shape[1], device=target.device)[None]
        hidden_p = target.layers(target.embedding[tokens].float(), positions, causal)[0, first - 1 : -1]
        hidden_q = student(tokens)[0, first - 1 : -1]
        overlaps, accepted = [], []
        for start in range(0, hidden_p.shape[0], CHUNK):
            chunk = slice(start, start + CHUNK)
            p = functional.linear(hidden_p[chunk].to(target.head.dtype), target.head).float()
            q = student.log_law(hidden_q[chunk])
            committed = tokens[0, first + start : first + start + CHUNK]
            o, a = compare(p, q, student.head_ids, committed, sequence.temperature)
            overlaps.append(o)
            accepted.append(a)
        cell = table.setdefault((sequence.kind, sequence.temperature), Acceptance())
        cell.add(torch.cat(overlaps), torch.cat(accepted))
    return table


def compare(p: Tensor, q: Tensor, head_ids: Tensor, committed: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Overlap and chance of acceptance per position.

    Args:
        p: the target's logits [n, vocab].
        q: the draft's logits, or their log softmax, [n, head], of the tokens head_ids [head].
        committed: what the target wrote [n].

    Returns:
        overlap [n], chance that the draft was accepted where `committed` was the outcome [n].
    """
    options = [SamplingParams(temperature)]
    p, q = laws(p[None], options)[0], laws(q[None], options)[0]
    whole = torch.zeros_like(p).index_copy_(1, head_ids, q)
    drawn = committed[:, None]
    chance = (whole.gather(1, drawn) / p.gather(1, drawn).clamp(min=1e-30)).clamp(max=1.0)[:, 0]
    return torch.minimum(p, whole).sum(-1), chance


def by_temperature(table: Table) -> dict[float, Acceptance]:
    """Sums over kinds, coldest first."""
    return {t: total(a for (_, u), a in table.items() if u == t) for t in sorted({t for _, t in table})}


def by_kind(table: Table, temperature: float) -> dict[str, Acceptance]:
    """The kinds at one temperature, by name."""
    return {kind: a for (kind, t), a in sorted(table.items()) if t == temperature}
