"""The second law function by hand-made examples, and the likeliest texts by full enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pipeline.conformance.deployment import Ids
from pipeline.conformance.reference import Law, edited_scores, law_of, log_softmax
from pipeline.conformance.texts import END, likeliest_texts
from pipeline.sampling.params import SamplingParams

SCORES = np.log([0.4, 0.3, 0.2, 0.1])


def law(**options: float) -> list[float]:
    params = SamplingParams(**{"temperature": 1.0, **options})  # type: ignore[arg-type]
    return [round(float(p), 6) for p in law_of(SCORES, params).p]


def test_options_one_by_one() -> None:
    """Each by arithmetic."""
    assert law() == [0.4, 0.3, 0.2, 0.1]
    assert law(temperature=0.5) == [round(p * p / 0.3, 6) for p in (0.4, 0.3, 0.2, 0.1)]
    assert law(top_k=2) == [round(4 / 7, 6), round(3 / 7, 6), 0, 0]
    assert law(top_p=0.5) == [round(4 / 7, 6), round(3 / 7, 6), 0, 0]
    assert law(top_p=0.3) == [1, 0, 0, 0]
    assert law(min_p=0.6) == [round(4 / 7, 6), round(3 / 7, 6), 0, 0]
    assert law(top_k=3, top_p=0.7) == [round(4 / 7, 6), round(3 / 7, 6), 0, 0]


def test_edits() -> None:
    """Penalties count the prompt, bias adds up, bad words look back, a held end token cannot come."""
    scores = [2.0, -2.0, 1.0, 0.0]
    penalised = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    assert edited_scores(scores, penalised, (0, 1, 0), None).tolist() == [0.0, -4.75, 1.0, 0.0]
    biased = SamplingParams(logit_bias=((2, 1.0), (2, 0.5)), bad_words=((3,), (0, 1)))
    assert edited_scores(scores, biased, (0,), None).tolist() == [2.0, -math.inf, 2.5, -math.inf]
    assert edited_scores(scores, biased, (1,), 0).tolist() == [-math.inf, -2.0, 2.5, -math.inf]
    assert edited_scores([-1e9, 0.0], SamplingParams(), (), None)[0] == -math.inf
    assert log_softmax([1.0, 1.0]).tolist() == pytest.approx([-math.log(2)] * 2)


def test_edges() -> None:
    """A token that rounding could move is told."""
    close = np.log([0.4, 0.2005, 0.1995, 0.2])
    assert law_of(close, SamplingParams(temperature=1.0, top_k=2)).edge
    assert law_of(SCORES, SamplingParams(temperature=1.0, top_p=0.7005)).edge
    assert law_of(SCORES, SamplingParams(temperature=1.0, min_p=0.75)).edge
    assert not law_of(SCORES, SamplingParams(temperature=1.0, top_k=2, top_p=0.9, min_p=0.1)).edge


def behind(said: Ids) -> Law:
    """A law over four tokens that depends on what was said."""
    p = np.roll([0.5, 0.25, 0.15, 0.1], sum(said) % 4)
    return Law(p, edge=said == (0, 0))


def test_likeliest_texts() -> None:
    """Masses are those of the enumeration; an undecided beginning is one cell; the rest is all the rest."""
    exact: dict[Ids, float] = {}
    for text in itertools.product(range(4), repeat=3):
        mass, cut = 1.0, text
        for i, token in enumerate(text):
            if text[:i] == (0, 0):
                cut = (0, 0)
                break
            mass *= behind(text[:i]).p[token]
            if token == 3:
                cut = (*text[:i], END)
                break
        exact[cut] = mass
    cells = likeliest_texts(behind, 3, 3, 0.03, 8)
    for text, cell in cells.index.items():
        assert cells.masses[cell] == pytest.approx(exact[text])
    assert sum(cells.masses) == pytest.approx(1.0)
    assert len(cells.masses) <= 8
    assert (0, 0) in cells.index and cells.cell((0, 0, 2)) == cells.index[(0, 0)]
    left_out = max(mass for text, mass in exact.items() if text not in cells.index)
    assert left_out <= min(cells.masses[cell] for cell in cells.index.values())
    assert cells.cell((2, 2, 2)) == len(cells.masses) - 1
