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

LIKELY = 0.2
"""Probability of a text from which on the tokens behind it are tested by themselves."""
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

    The law behind each text is cut in two at half its mass, most probable tokens first. Behind a likely text the
    tokens are tested by themselves, so that deviations of both signs add up; the others are joined by position. The
    first token of an answer is decoded plainly and left out.
    """
    groups: dict[Ids, _Group] = {}
    behind: dict[Ids, _Behind] = {}
    impossible = total = 0
    for text in texts:
        for i in range(1, len(text)):
            said = text[:i]
            if said not in behind:
                behind[said] = _look(said, law_of)
            place = behind[said]
            if place.law.edge:
                continue
            token = text[i] if text[i] != END or end_id is None else end_id
            group = said if place.mass >= LIKELY else (END,) * i
            groups.setdefault(group, _Group()).add(token in place.head, place.inside)
            total += 1
            impossible += bool(place.law.p[token] == 0)
    # With a smaller variance there is nothing to decide.
    decided = [group for group in groups.values() if group.variance >= 1]
    fits = [_beyond(impossible, total)]
    if decided:
        value = sum((group.found - group.expected) ** 2 / group.variance for group in decided)
        draws, df = sum(group.draws for group in decided), len(decided)
        shift = sum(group.draws**2 / group.variance for group in decided)
        fits.append(
            Fit(
                name="tokens",
                draws=draws,
                chi_square=value,
                df=df,
                tail=chi_square_tail(value, df),
                bound=divergence_bound(sum(group.nats for group in decided), df),
                distance=sum(abs(group.found - group.expected) for group in decided) / draws,
                detectable=detectable(lambda delta: shift * delta**2, df, plan.repeat, plan.bound, df),
            )
        )
    return fits


@dataclass(frozen=True, eq=False)
class _Behind:
    """The law behind a text, the half of it that is counted, that half's probability, and the text's own."""

    law: Law
    head: frozenset[int]
    inside: float
    mass: float


@dataclass
class _Group:
    """Tokens that are counted together: inside the counted half, or not."""

    draws: int = 0
    found: int = 0
    expected: float = 0.0
    variance: float = 0.0

    def add(self, inside: bool, probability: float) -> None:
        self.draws += 1
        self.found += inside
        self.expected += probability
        self.variance += probability * (1 - probability)

    @property
    def nats(self) -> float:
        """n KL(found, expected)."""
        share, mean = self.found / self.draws, self.expected / self.draws
        return self.draws * divergence((share, 1 - share), (mean, 1 - mean))


def _look(said: Ids, law_of: Callable[[Ids], Law]) -> _Behind:
    law = law_of(said)
    order = np.argsort(-law.p, kind="stable")
    sums = np.cumsum(law.p[order[:4096]])
    head = frozenset(order[: int(np.argmin(np.abs(sums - 0.5))) + 1].tolist())
    mass = math.prod(float(law_of(said[:i]).p[token]) for i, token in enumerate(said))
    return _Behind(law, head, float(law.p[list(head)].sum()), mass)


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


def _beyond(count: int, total: int) -> Fit:
    """Tokens that the law excludes: more of them than rounding at the edges explains."""
    share, allowed = (count / total if total else 0.0), IMPOSSIBLE_TOLERANCE
    nats = total * divergence((share, 1 - share), (allowed, 1 - allowed)) if share > allowed else 0.0
    bound = math.exp(-nats)
    return Fit(IMPOSSIBLE, total, nats, 1, 1.0 if bound > 0.5 else bound, bound, share, 0.0)
