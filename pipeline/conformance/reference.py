"""The law of the next token, written down a second time: NumPy, float64, one position, no cleverness.

It shares no code with `pipeline.sampling.laws`, so that a fault there does not hide itself here. Order: repetition,
presence and frequency penalties -> bias -> bad words -> min_tokens -> temperature -> top-k -> top-p -> min-p ->
renormalise.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.conformance.deployment import Ids
from pipeline.sampling.params import SamplingParams

Probabilities = npt.NDArray[np.float64]

NEAR_LOG = 0.02
"""Log-probabilities so close may be told apart differently in the low precision of an engine."""
NEAR_MASS = 0.003
"""The same for a sum of probabilities at the edge of top-p."""
ABSENT = -1e8
"""A score at or below it stands for probability 0."""


@dataclass(frozen=True, eq=False)
class Law:
    """A law and how sure it is.

    Attributes:
        p: [vocab] probabilities, sum 1.
        edge: True where a token is so close to the edge of top-k, top-p or min-p that rounding may move it.
    """

    p: Probabilities
    edge: bool


def edited_scores(scores: npt.ArrayLike, options: SamplingParams, history: Ids, forbidden: int | None) -> Probabilities:
    """Scores after what acts before the temperature.

    Args:
        scores: [vocab] raw logits; up to a constant where there is no repetition penalty.
        options: penalties, bias and bad words.
        history: prompt and everything committed.
        forbidden: the end token while min_tokens holds it back.

    Returns:
        [vocab] float64, -inf for what is impossible.
    """
    edited = np.array(scores, np.float64)
    edited[edited <= ABSENT] = -np.inf
    for token, count in Counter(token for token in history if token < len(edited)).items():
        ratio = options.repetition_penalty
        edited[token] *= ratio if edited[token] < 0 else 1.0 / ratio
        edited[token] -= options.presence_penalty + options.frequency_penalty * count
    for token, weight in options.logit_bias:
        edited[token] += weight
    for *before, last in options.bad_words:
        if tuple(before) == history[len(history) - len(before) :]:
            edited[last] = -np.inf
    if forbidden is not None:
        edited[forbidden] = -np.inf
    return edited


def law_of(edited: Probabilities, options: SamplingParams) -> Law:
    """[vocab] edited scores -> the law they are sampled from; temperature above 0."""
    scaled = edited / options.temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    edge = False
    count = int(np.count_nonzero(p))
    if 0 < options.top_k < count:
        edge |= _near(p[order[options.top_k - 1]], p[order[options.top_k]])
        count = options.top_k
    kept = p[order[:count]] / p[order[:count]].sum()
    if options.top_p < 1.0:
        sums = np.cumsum(kept)
        edge |= bool(np.any(np.abs(sums[:-1] - options.top_p) < NEAR_MASS))
        count = int(np.searchsorted(sums, options.top_p)) + 1
    kept = kept[:count]
    if options.min_p > 0.0:
        limit = options.min_p * kept[0]
        edge |= any(_near(value, limit) for value in kept)
        kept = kept[kept >= limit]
    law = np.zeros_like(p)
    law[order[: len(kept)]] = kept / kept.sum()
    return Law(law, edge)


def log_softmax(scores: npt.ArrayLike) -> Probabilities:
    """[vocab] log-probabilities before any sampling option."""
    values = np.array(scores, np.float64)
    values -= values.max()
    result: Probabilities = values - np.log(np.exp(values).sum())
    return result


def _near(a: float, b: float) -> bool:
    return bool(b > 0 and abs(np.log(a / b)) < NEAR_LOG)
