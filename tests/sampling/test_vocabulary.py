"""Two-level reductions against torch's own, and draws from a law."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sampling.vocabulary import draw, one_hot, row_argmax, row_sums, row_topk

QUICK = settings(derandomize=True, deadline=None, max_examples=60)
VOCABS = st.sampled_from([1, 2, 7, 63, 64, 65, 255, 256, 257, 512, 700, 20_000])


def numbers(seed: int, rows: int, vocab: int, levels: int) -> torch.Tensor:
    """[rows, vocab] with ties where levels is small."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, levels, (rows, vocab), generator=generator).float() / 8


@QUICK
@given(seed=st.integers(0, 1000), rows=st.integers(1, 4), vocab=VOCABS, levels=st.sampled_from([1, 3, 1000]))
def test_row_argmax_is_the_first_largest(seed: int, rows: int, vocab: int, levels: int) -> None:
    x = numbers(seed, rows, vocab, levels)
    x[0, : vocab // 2] = -torch.inf
    first = (x == x.amax(-1, keepdim=True)).int().argmax(-1)
    assert torch.equal(row_argmax(x), first)
    assert torch.equal(row_argmax(x.view(rows, 1, vocab)), first[:, None])
    assert torch.equal(one_hot(first, vocab, torch.float64).argmax(-1), first)


@QUICK
@given(seed=st.integers(0, 1000), rows=st.integers(1, 4), vocab=VOCABS, data=st.data())
def test_row_topk_is_a_stable_sort(seed: int, rows: int, vocab: int, data: st.DataObject) -> None:
    """Equal to the sort everywhere above the smallest number returned; that one may be any of its equals."""
    count = data.draw(st.integers(1, min(vocab, 200)) | st.just(vocab))
    x = numbers(seed, rows, vocab, data.draw(st.sampled_from([4, 50, 100_000])))
    values, tokens = row_topk(x, count)
    ordered = torch.sort(x, dim=-1, descending=True, stable=True)
    assert torch.equal(values, ordered.values[:, :count])
    assert torch.equal(x.gather(1, tokens), values)
    clear = values > values[:, -1:] if count < vocab else torch.ones_like(values, dtype=torch.bool)
    assert torch.equal(tokens[clear], ordered.indices[:, :count][clear])
    assert all(len(set(row)) == count for row in tokens.tolist())


@pytest.mark.parametrize("vocab", [3, 300, 1000])
def test_row_sums(vocab: int) -> None:
    x = torch.rand(5, vocab, dtype=torch.float64)
    torch.testing.assert_close(row_sums(x), x.sum(-1), rtol=1e-14, atol=0)
    assert row_sums(x.float()).dtype == torch.float64


@pytest.mark.parametrize(("vocab", "total"), [(3, 1.0), (257, 1.0), (1000, 0.1), (700, 40.0)])
def test_a_grid_of_uniforms_gives_the_law(vocab: int, total: float) -> None:
    """Each token takes an interval of u as long as its probability: counted on a grid, off by less than 2 cells."""
    generator = torch.Generator().manual_seed(vocab)
    law = torch.rand(vocab, generator=generator, dtype=torch.float64)
    law = law * (torch.rand(vocab, generator=generator) < 0.5)
    law[-1] += 0.1
    law = law / law.sum() * total
    cells = 20_000
    u = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    tokens = draw(law.expand(cells, -1), u)
    counts = torch.bincount(tokens, minlength=vocab).double()
    assert float((counts - law / total * cells).abs().max()) < 2
    assert bool((tokens[1:] >= tokens[:-1]).all())


@QUICK
@given(seed=st.integers(0, 1000), vocab=VOCABS, single=st.booleans(), scale=st.sampled_from([1e-30, 0.3, 1.0, 7.0]))
def test_a_token_of_probability_zero_is_never_drawn(seed: int, vocab: int, single: bool, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    law = torch.rand(40, vocab, generator=generator, dtype=torch.float64) ** 8
    law = law * (torch.rand(40, vocab, generator=generator) < 3 / vocab) * scale
    law[:, seed % vocab] += scale * 1e-3
    law = law.float() if single else law
    u = torch.rand(40, generator=generator, dtype=torch.float64)
    u[:2] = torch.tensor([0.0, 1 - 2.0**-53])
    chosen = law.gather(1, draw(law, u)[:, None])
    assert bool((chosen > 0).all())


def test_extreme_uniforms_take_the_first_and_the_last_possible_token() -> None:
    law = torch.zeros(2, 1000)
    law[:, [3, 500, 900]] = torch.tensor([1e-30, 1.0, 1e-30])
    law[1] = torch.zeros(1000)
    law[1, [3, 500, 900]] = 1 / 3
    u = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert draw(law, u).tolist() == [3, 900]
