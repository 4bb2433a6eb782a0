"""Samples against a law: the tail probability of a chi-square."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

Ids = tuple[int, ...]


def tail(found: Sequence[Ids], law: dict[Ids, float], length: int) -> float:
    """Probability of a chi-square as large as this one; 0 where something impossible was said."""
    counts = Counter(ids[:length] for ids in found)
    if any(ids not in law for ids in counts):
        return 0.0
    cells = [(counts[ids], mass * len(found)) for ids, mass in law.items()]
    large = [cell for cell in cells if cell[1] >= 8]
    small = [cell for cell in cells if cell[1] < 8]
    pooled = (sum(count for count, _ in small), sum(expected for _, expected in small))
    if pooled[1] >= 8:
        large.append(pooled)
    statistic = sum((count - expected) ** 2 / expected for count, expected in large)
    half = torch.tensor([(len(large) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
