"""Laws against a slow reference that sorts and loops."""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sampling import laws as module
from pipeline.sampling.laws import laws, laws_from_log, log_laws
from pipeline.sampling.params import GREEDY, SamplingParams

EDGE = 1e-5
"""Where a cumulative probability is this close to top_p, rounding decides, and the two may differ."""

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 0, 1, 2, 3, 7, 100]),
    top_p=st.sampled_from([1.0, 1.0, 0.05, 0.33, 0.613, 0.9, 0.998]),
)


def reference(logits: list[float], params: SamplingParams) -> tuple[list[float], bool]:
    """The law of one position, and whether top_p falls on an edge."""
    vocab = len(logits)
    if params.greedy:
        best = max(range(vocab), key=lambda v: (logits[v], -v))
        return [float(v == best) for v in range(vocab)], False
    largest = max(logits)
    weights = [math.exp((x - largest) / params.temperature) for x in logits]
    order = sorted(range(vocab), key=lambda v: (-weights[v], v))
    if params.top_k:
        order = order[: params.top_k]
    total = sum(weights[v] for v in order)
    kept, reached, edge = [], 0.0, False
    for v in order:
        edge = edge or (params.top_p < 1 and abs(reached - params.top_p) < EDGE)
        if params.top_p < 1 and reached >= params.top_p:
            break
        kept.append(v)
        reached += weights[v] / total
    mass = sum(weights[v] for v in kept)
    return [weights[v] / mass if v in kept else 0.0 for v in range(vocab)], edge


@settings(derandomize=True, deadline=None, max_examples=150)
@given(data=st.data())
def test_mixed_rows_equal_the_reference(data: st.DataObject) -> None:
    rows, positions, vocab = (data.draw(st.integers(1, top)) for top in (4, 3, 40))
    seed, levels = data.draw(st.integers(0, 10**6)), data.draw(st.sampled_from([2, 12, 97]))
    options = [data.draw(PARAMS) for _ in range(rows)]
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, levels, (rows, positions, vocab), generator=generator).float() / 8  # with ties
    logits[torch.rand(logits.shape, generator=generator) < 0.1] = -torch.inf
    logits[..., seed % vocab] = 1.0
    given_logits = logits.clone()
    with mock.patch.object(module, "FIRST_LOOK", data.draw(st.sampled_from([1, 2, 64]))):
        law = laws(logits, options)
    assert torch.equal(logits, given_logits)
    assert law.dtype == torch.float32
    torch.testing.assert_close(law.sum(-1), torch.ones(rows, positions), rtol=0, atol=1e-5)
    for row, option in enumerate(options):
        for position in range(positions):
            expected, edge = reference(logits[row, position].tolist(), option)
            if edge:
                continue
            got = law[row, position]
            assert torch.equal(got > 0, torch.tensor(expected) > 0)
            torch.testing.assert_close(got, torch.tensor(expected), rtol=1e-4, atol=1e-6)
            if option.greedy:
                assert got.tolist() == expected


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 12.0])
@pytest.mark.parametrize(
    "option", [SamplingParams(0.8, 0, 0.9), SamplingParams(1.0, 700, 1.0), SamplingParams(1.2, 50, 0.7)]
)
def test_a_large_vocabulary_equals_the_reference(spread: float, option: SamplingParams) -> None:
    """From flat laws, which end in a full sort, to peaked ones, which are covered by the first look."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(2, 2, 12_000, generator=generator) * spread
    law = laws(logits, [option, option])
    for got, x in zip(law.flatten(0, 1), logits.flatten(0, 1), strict=True):
        expected, _ = by_sorting(x.double().numpy(), option)
        # Rounding may move the cut by a token of this size.
        assert float((got.double() - torch.from_numpy(expected)).abs().sum()) < 2e-3
        assert abs(int((got > 0).sum()) - int((expected > 0).sum())) <= 1


def by_sorting(x: np.ndarray, option: SamplingParams) -> tuple[np.ndarray, int]:
    weights = np.exp((x - x.max()) / option.temperature)
    order = np.argsort(-weights, kind="stable")
    order = order[: option.top_k or len(order)]
    share = weights[order] / weights[order].sum()
    before = np.cumsum(share) - share
    kept = order[before < option.top_p - 1e-12] if option.top_p < 1 else order
    law = np.zeros_like(weights)
    law[kept] = weights[kept] / weights[kept].sum()
    return law, len(kept)


def test_a_law_does_not_depend_on_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3, 5000, generator=generator) * torch.tensor([0.0, 0.3, 1, 2, 4, 9])[:, None, None]
    options = [
        SamplingParams(0.9, 0, 0.95),
        SamplingParams(1.0, 40, 1.0),
        SamplingParams(0.7),
        GREEDY,
        SamplingParams(0.5, 400, 0.5),
        SamplingParams(1.3, 0, 0.999),
    ]
    together = laws(logits, options)
    for row, option in enumerate(options):
        assert torch.equal(together[row], laws(logits[row : row + 1], [option])[0])
        for position in range(3):
            alone = laws(logits[row : row + 1, position : position + 1], [option])
            assert torch.equal(together[row, position], alone[0, 0])


def test_the_token_that_crosses_top_p_is_kept() -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log().expand(1, 1, 4)
    for top_p, kept in [(0.4, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.88, 4)]:
        assert int((laws(logits, [SamplingParams(1.0, 0, top_p)]) > 0).sum()) == kept


def test_ties_are_kept_in_the_order_of_token_ids() -> None:
    logits = torch.zeros(1, 1, 1000)
    logits[0, 0, 700] = 1.0
    kept = laws(logits, [SamplingParams(1.0, 4, 1.0)])[0, 0].nonzero().flatten().tolist()
    assert kept == [0, 1, 2, 700]
    assert laws(torch.zeros(1, 1, 9), [GREEDY])[0, 0].tolist() == [1.0] + [0.0] * 8


def test_top_p_after_top_k_is_relative_to_what_top_k_kept() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(1, 1, 4)
    # 0.4 / 0.7 = 0.571 of what is left reaches 0.55; of the whole law it would not.
    assert laws(logits, [SamplingParams(1.0, 2, 0.55)])[0, 0].tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-8])
def test_a_tiny_temperature_is_nearly_greedy(temperature: float) -> None:
    law = laws(torch.tensor([[[1.0, 30.0, -5.0, -torch.inf]]]), [SamplingParams(temperature)])
    assert law[0, 0].tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_float_types(dtype: torch.dtype) -> None:
    logits = torch.randn(2, 1, 50, dtype=torch.float64).to(dtype)
    law = laws(logits, [SamplingParams(0.7), SamplingParams(0.7, 0, 0.9)])
    assert law.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(law[0], torch.softmax(logits[0].double() / 0.7, -1).to(law.dtype))


def test_one_params_per_row() -> None:
    with pytest.raises(ValueError, match="1 sampling params for 2 rows"):
        laws(torch.zeros(2, 1, 4), [GREEDY])


def test_log_laws_cross_as_a_plain_softmax() -> None:
    law = laws(torch.randn(3, 2, 500) * 3, [SamplingParams(0.7, 20), SamplingParams(1.0), GREEDY])
    sent = log_laws(law)
    assert bool(torch.isfinite(sent).all())
    assert torch.equal(sent == module.ZERO_LOG, law == 0)
    back = laws_from_log(sent + 3.0)  # up to a constant
    torch.testing.assert_close(back, law, rtol=1e-5, atol=1e-9)
    assert torch.equal(back == 0, law == 0)
    expected = laws_from_log(sent)
    laws_from_log(sent, out=sent)
    assert torch.equal(sent, expected)
    assert laws_from_log(torch.tensor([0.0, module.ZERO_BELOW])).tolist() == [1.0, 0.0]
