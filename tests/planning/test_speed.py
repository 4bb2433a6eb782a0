"""The roofline and what speculation pays: limits, directions, and comparison with simulated rounds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planning.constants import DEFAULT
from pipeline.planning.gpus import find_gpu
from pipeline.planning.model_shape import ModelShape
from pipeline.planning.placement import Placement
from pipeline.planning.published import check
from pipeline.planning.roofline import pass_time
from pipeline.planning.speculation import (
    StepCosts,
    acceptance_for,
    break_even,
    expected_committed,
    gpu_costs,
    speculate,
)

BIG = Placement(ModelShape.known("meta-llama/Llama-3.1-70B"))
SMALL = Placement(ModelShape.known("meta-llama/Llama-3.2-1B"))
H100 = find_gpu("H100-SXM")
COSTS = st.builds(
    StepCosts,
    draft_s=st.floats(0.0005, 0.02),
    verify_s=st.lists(st.floats(0.01, 0.05), min_size=2, max_size=9).map(lambda times: tuple(sorted(times))),
    overhead_s=st.floats(0, 0.01),
)


def test_decoding_is_reading_the_weights() -> None:
    """With ideal constants one token takes bytes over bandwidth, to the digit."""
    ideal = replace(DEFAULT, bandwidth_share=1.0, layer_s=0.0)
    time = pass_time(BIG, H100, 1, 1, 0, ideal)
    read = 2 * (BIG.shape.parameters - BIG.shape.head)  # one row of the embedding is read, not the table
    assert time.total_s == pytest.approx(read / 3.35e12, rel=1e-4)
    assert time.bottleneck == "weight reads"


def test_many_rows_are_arithmetic() -> None:
    time = pass_time(BIG, H100, 1, 8192, 0)
    assert time.bottleneck == "arithmetic"
    assert time.compute_s >= 2 * 8192 * 70e9 / 989e12


def test_long_contexts_of_many_sequences_are_kv_reads() -> None:
    assert pass_time(BIG, H100, 128, 1, 8192).bottleneck == "KV reads"


def test_small_models_are_launches() -> None:
    assert pass_time(replace(SMALL, weights="fp8"), find_gpu("H200"), 1, 1, 128).bottleneck == "kernel launches"


@given(
    sequences=st.integers(1, 64), tokens=st.integers(1, 16), context=st.integers(0, 8192), tp=st.sampled_from([1, 2, 4])
)
def test_more_work_never_takes_less_time(sequences: int, tokens: int, context: int, tp: int) -> None:
    placement = replace(BIG, tensor_parallel=tp, devices=tuple(range(tp)))
    time = pass_time(placement, H100, sequences, tokens, context).total_s
    assert time <= pass_time(placement, H100, sequences + 1, tokens, context).total_s
    assert time <= pass_time(placement, H100, sequences, tokens + 1, context).total_s
    assert time <= pass_time(placement, H100, sequences, tokens, context + 1).total_s


def test_splitting_divides_reads_and_adds_links() -> None:
    alone = pass_time(BIG, H100, 1, 1, 1024)
    four = pass_time(replace(BIG, tensor_parallel=4, devices=(0, 1, 2, 3)), H100, 1, 1, 1024)
    assert four.weights_s == pytest.approx(alone.weights_s / 4, rel=1e-3)
    assert four.kv_s == pytest.approx(alone.kv_s / 4)
    assert alone.links_s == 0 and four.links_s >= 160 * DEFAULT.nvlink_s
    slow = replace(BIG, tensor_parallel=4, devices=(0, 1, 2, 3))
    assert pass_time(slow, find_gpu("L40S"), 1, 1, 0).links_s > four.links_s


def test_a_pipeline_reads_everything_in_turn() -> None:
    staged = replace(BIG, pipeline_parallel=2, devices=(0, 1))
    assert pass_time(staged, H100, 1, 1, 0).total_s > pass_time(BIG, H100, 1, 1, 0).total_s


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("k", [0, 1, 4, 8])
def test_expected_tokens_of_simulated_rounds(k: int, acceptance: float) -> None:
    draw, rounds, total = random.Random(1), 20_000, 0
    for _ in range(rounds):
        kept = 0
        while kept < k and draw.random() < acceptance:
            kept += 1
        total += kept + 1
    assert expected_committed(k, acceptance) == pytest.approx(total / rounds, rel=0.02)


@given(costs=COSTS, acceptance=st.floats(0, 1), batch=st.integers(1, 64))
def test_the_best_k_is_the_fastest(costs: StepCosts, acceptance: float, batch: int) -> None:
    found = speculate(costs, batch, acceptance)
    rates = [batch * sum(acceptance**i for i in range(k + 1)) / costs.round_s(k) for k in range(len(costs.verify_s))]
    assert found.best.tokens_s == pytest.approx(max(rates))
    assert found.best.speedup >= 1 and found.plain.speedup == pytest.approx(1)
    assert found.plain.tokens_s == pytest.approx(batch / costs.plain_s)


@given(costs=COSTS)
def test_break_even_parts_gain_from_loss(costs: StepCosts) -> None:
    even = break_even(costs)
    if even is None:
        assert speculate(costs, 1, 1.0).best.k == 0
        return
    assert speculate(costs, 1, min(1.0, even + 1e-6)).best.speedup >= 1 - 1e-9
    assert all(outcome.speedup <= 1 + 1e-9 for outcome in speculate(costs, 1, max(0.0, even - 1e-6)).outcomes)


def test_acceptance_that_reaches_a_time() -> None:
    costs = StepCosts(draft_s=0.001, verify_s=(0.02,) * 5, overhead_s=0.0)
    found = acceptance_for(costs, 4, 0.008)
    assert found is not None and 0.024 / expected_committed(4, found) == pytest.approx(0.008)
    assert acceptance_for(costs, 4, 0.001) is None


def test_without_a_draft_model_only_plain_is_known() -> None:
    found = speculate(gpu_costs(BIG, None, H100, 1, 1024, 8), 1, 0.7)
    assert [outcome.k for outcome in found.outcomes] == [0] and found.break_even is None


def test_published_figures() -> None:
    """Arithmetic within 1 %, the calibration row within 1 %, plain decoding that was not fitted within 6 %.

    Two rows are known to be off: a rounded figure of another server, and one whose acceptance is not published.
    """
    rows = {row.what: row for row in check()}
    errors = {what: row.error for what, row in rows.items()}
    assert all(abs(row.error) < 0.01 for row in rows.values() if row.kind != "prediction")
    assert abs(errors["Llama-3.3-70B FP8, one H200, low batch"]) < 0.06
    assert abs(errors["Llama-3.1-405B FP8, TP4 on H200, low batch"]) < 0.06
    assert abs(errors["Qwen2.5-Coder-7B FP16, RTX 4090, batch 1"]) < 0.06
    assert abs(errors["Qwen2.5-Coder-7B + 0.5B FP16, RTX 4090, K = 4"]) < 0.06
    assert sum(row.kind == "calibration" for row in rows.values()) == 1


def test_arithmetic_rows_use_no_constant() -> None:
    changed = check(replace(DEFAULT, bandwidth_share=0.5, layer_s=1e-3, flops_share=0.1))
    for before, after in zip(check(), changed, strict=True):
        assert (before.predicted == after.predicted) == (before.kind == "arithmetic")
