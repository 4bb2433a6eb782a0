"""Samples against laws: whole texts, each token given what stands before it, and two samples against each other.

Each test has the tail of its screen, the bound of its confirmation, the total variation it found and the one it would
have detected with 99 % power.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.conformance.deployment import Ids
from pipeline.conformance.reference import Law
from pipeline.conformance.statistics import (
    chi_square_tail,
    detectable,
    divergence,
    divergence_bound,
    total_variation,
)
from pipeline.conformance.texts import END, Cells

IMPOSSIBLE = "impossible tokens"
IMPOSSIBLE_TOLERANCE = 0.002
"""Share of tokens that low precision may let through where the law here says 0."""


@dataclass(frozen=True)
class Fit:
    """One test of one sample.

    Attributes:
        name: what was compared.
        draws: independent draws.
        chi_square, df, tail: of the screen.
        bound: largest probability of a divergence as large as this one.
        distance: total variation found; `detectable`: what it would have found with 99 % power.
    """

    name: str
    draws: int
    chi_square: float
    df: int
    tail: float
    bound: float
    distance: float
    detectable: float

    def __str__(self) -> str:
        return (
            f"{self.name}: n {self.draws}, chi2 {self.chi_square:.1f} ({self.df} df, p {self.tail:.2g}), "
            f"TV {self.distance:.3f}, detects {self.detectable:.3f}"
        )


@dataclass(frozen=True)
class Plan:
    """How a deviation is confirmed: for the power that is printed.

    Attributes:
        repeat: samples of the confirmation, in sizes of the screen.
        bound: probability of its false alarms.
    """

    repeat: int
    bound: float


def fit_texts(texts: Sequence[Ids], cells: Cells, plan: Plan) -> Fit:
    """The joint law of the first tokens."""
    counts = Counter(cells.cell(text) for text in texts)
    n, df = len(texts), len(cells.masses) - 1
    pairs = [(counts[i], n * mass) for i, mass in enumerate(cells.masses) if mass > 0]
    # What cannot be said has no cell of its own: the test of impossible tokens counts it.
    value = sum((count - expected) ** 2 / expected for count, expected in pairs)
    found = [counts[i] / n for i in range(len(cells.masses))]
    floored = [max(mass, 1e-12) for mass in cells.masses]
    return Fit(
        name="texts",
        draws=n,
        chi_square=value,
        df=df,
        tail=chi_square_tail(value, df),
        bound=divergence_bound(n * divergence(found, floored), df),
        distance=total_variation(found, cells.masses),
        detectable=detectable(lambda distance: 4 * n * distance**2, df, plan.repeat, plan.bound, df),
    )


def fit_tokens(texts: Sequence[Ids], law_of: Callable[[Ids], Law], end_id: int | None, plan: Plan) -> list[Fit]:
    """Each token behind the first given what stands before it, and what should be impossible.

    At every position the law behind each text is cut in two at half its mass, most probable tokens first; the first
    token of an answer is decoded plainly and left out. Positions are added up.
    """
    sides: dict[Ids, tuple[Law, frozenset[int], float]] = {}
    position: dict[int, list[tuple[bool, float]]] = {}
    impossible = total = 0
    for text in texts:
        for i in range(1, len(text)):
            if text[:i] not in sides:
                law = law_of(text[:i])
                head = _head(law)
                sides[text[:i]] = (law, head, float(law.p[list(head)].sum()))
            law, head, mass = sides[text[:i]]
            if law.edge:
                continue
            token = text[i] if text[i] != END or end_id is None else end_id
            position.setdefault(i, []).append((token in head, mass))
            total += 1
            impossible += bool(law.p[token] == 0)
    value = shift = nats = distance = 0.0
    df = draws = 0
    for outcomes in position.values():
        n, mean = len(outcomes), float(np.mean([mass for _, mass in outcomes]))
        variance = sum(mass * (1 - mass) for _, mass in outcomes)
        if variance < 1:  # nothing to decide here
            continue
        share = sum(inside for inside, _ in outcomes) / n
        value += n**2 * (share - mean) ** 2 / variance
        shift += n**2 / variance
        nats += n * divergence((share, 1 - share), (mean, 1 - mean))
        distance += n * abs(share - mean)
        draws += n
        df += 1
    fits = [_beyond(impossible, total)]
    if df:
        fits.append(
            Fit(
                name="tokens",
                draws=draws,
                chi_square=value,
                df=df,
                tail=chi_square_tail(value, df),
                bound=divergence_bound(nats, df),
                distance=distance / draws,
                detectable=detectable(lambda delta: shift * delta**2, df, plan.repeat, plan.bound, df),
            )
        )
    return fits


def fit_two(left: Sequence[Ids], right: Sequence[Ids], cells: Cells, plan: Plan) -> Fit:
    """Two samples of equal size from what should be one law, over cells that neither chose alone."""
    n, df = len(left), len(cells.masses) - 1
    a, b = (np.bincount([cells.cell(text) for text in texts], minlength=df + 1) for texts in (left, right))
    both = a + b
    value = float(sum((x - y) ** 2 / s for x, y, s in zip(a, b, both, strict=True) if s))
    middle = (both / (2 * n)).tolist()
    nats = n * (divergence((a / n).tolist(), middle) + divergence((b / n).tolist(), middle))
    return Fit(
        name="texts against plain decoding",
        draws=n,
        chi_square=value,
        df=df,
        tail=chi_square_tail(value, df),
        bound=divergence_bound(nats, 2 * df),
        distance=total_variation((a / n).tolist(), (b / n).tolist()),
        detectable=detectable(lambda distance: 2 * n * distance**2, df, plan.repeat, plan.bound, 2 * df),
    )


def common_cells(texts: Sequence[Ids], least: int, most: int) -> Cells:
    """Cells for two samples without a law: the texts most often said, from both together."""
    often = [(text, count) for text, count in Counter(texts).most_common(most - 1) if count >= least]
    rest = len(texts) - sum(count for _, count in often)
    if rest < least and len(often) > 1:
        rest += often.pop()[1]
    masses = [count / len(texts) for _, count in often]
    return Cells((*masses, rest / len(texts)), {text: i for i, (text, _) in enumerate(often)})


def _head(law: Law) -> frozenset[int]:
    """The most probable tokens whose mass is nearest to one half."""
    order = np.argsort(-law.p, kind="stable")
    sums = np.cumsum(law.p[order[:4096]])
    last = int(np.argmin(np.abs(sums - 0.5)))
    return frozenset(order[: last + 1].tolist())


def _beyond(count: int, total: int) -> Fit:
    """Tokens that the law excludes: more of them than rounding at the edges explains."""
    share, allowed = (count / total if total else 0.0), IMPOSSIBLE_TOLERANCE
    nats = total * divergence((share, 1 - share), (allowed, 1 - allowed)) if share > allowed else 0.0
    bound = math.exp(-nats)
    return Fit(IMPOSSIBLE, total, nats, 1, 1.0 if bound > 0.5 else bound, bound, share, 0.0)
