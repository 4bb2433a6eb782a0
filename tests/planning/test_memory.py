"""The envelope: known sizes, shards that add up, pools that never overfill a GPU in any order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.planning.constants import DEFAULT
from pipeline.planning.memory import Sizes, balanced_tokens, plan_memory, sequences_in
from pipeline.planning.model_shape import ModelShape
from pipeline.planning.placement import Placement
from pipeline.spec import Role

BIG = ModelShape.known("meta-llama/Llama-3.1-70B")
SMALL = ModelShape.known("meta-llama/Llama-3.2-1B")
QWEN = ModelShape.known("Qwen/Qwen2.5-32B-Instruct")
SIZES = Sizes(
    max_requests=32,
    max_draft_len=8,
    max_num_tokens=8192,
    tokens_per_block=32,
    fractions={"target": 0.6, "draft": 0.25},
    pool_tokens={},
    graphs={},
    laws={"target": 17, "draft": 9},
)


def on(shape: ModelShape, tp: int = 1, pp: int = 1, **changes: object) -> Placement:
    return replace(Placement(shape, "float16", tp, pp, tuple(range(tp * pp))), **changes)  # type: ignore[arg-type]


def test_70b_in_each_precision() -> None:
    """Two bytes a parameter are 140 GB; quantised, the embedding and the LM head stay in 16 bits."""
    assert on(BIG).model_bytes == 2 * BIG.parameters == pytest.approx(141.1e9, rel=1e-3)
    ends = 2 * 2 * 128256 * 8192
    eight_bits = on(BIG, weights="fp8").model_bytes
    assert eight_bits == on(BIG, weights="int8").model_bytes == pytest.approx((141.1e9 - ends) / 2 + ends, rel=1e-3)
    assert on(BIG, weights="int4").model_bytes == pytest.approx((141.1e9 - ends) / 4 + ends, rel=1e-3)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2)])
def test_ranks_hold_the_model_together(tp: int, pp: int) -> None:
    """At least the model, at most it and an embedding for every rank."""
    held = on(BIG, tp, pp).rank_weight_bytes * tp * pp
    assert 2 * BIG.parameters * 0.999 <= held <= 2 * (BIG.parameters + tp * pp * (BIG.head + 80 * BIG.layer_rest))


def test_a_tied_table_is_held_once_on_one_gpu_only() -> None:
    assert on(SMALL).rank_weight_bytes == pytest.approx(2 * SMALL.parameters, rel=1e-4)
    assert on(SMALL, 2).rank_weight_bytes > SMALL.parameters + SMALL.head


def test_kv_of_a_token_is_shared_out_by_heads() -> None:
    assert on(BIG).rank_token_bytes == 320 * 1024
    assert on(BIG, 4).rank_token_bytes == 80 * 1024
    assert on(BIG, 16).rank_token_bytes == 40 * 1024  # eight heads: two ranks hold each
    assert on(BIG, 1, 2).rank_token_bytes == 160 * 1024
    assert on(BIG, kv_bytes=1).rank_token_bytes == 160 * 1024


def test_logits_and_laws() -> None:
    """B x (K + 1) x V x 4 of the target, and K laws of the draft beside them."""
    memory = plan_memory({"target": on(BIG, 4)}, 80e9, SIZES)
    assert memory.envelopes[0].models["target"].logits == 32 * ((8 + 1) + 8) * 128256 * 4


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (on(BIG, 3), "tensor_parallel = 3: does not divide num_attention_heads = 64"),
        (on(QWEN, 16), "tensor_parallel = 16: does not divide num_attention_heads = 40"),
        (on(BIG, 1, 81), "pipeline_parallel = 81: the model has 80 layers"),
    ],
)
def test_splits_that_cannot_be_built(placement: Placement, message: str) -> None:
    assert message in placement.indivisible()
    assert on(BIG, 8).indivisible() == ()


def test_a_padded_vocabulary() -> None:
    assert on(QWEN, 2).padded_vocab == 152064
    assert on(replace(QWEN, vocab=151_937), 8).padded_vocab == 151_944


def test_what_does_not_fit_is_counted() -> None:
    memory = plan_memory({"target": on(BIG)}, 80e9, SIZES)
    assert not memory.fits and memory.sequences(1) == 0
    assert memory.envelopes[0].missing == pytest.approx(memory.envelopes[0].used - 80e9)


@given(
    target=st.floats(0.05, 0.9),
    draft=st.floats(0.05, 0.9),
    capacity=st.floats(45e9, 200e9),
    bound=st.one_of(st.none(), st.integers(1000, 500_000)),
)
def test_pools_fit_in_any_order(target: float, draft: float, capacity: float, bound: int | None) -> None:
    """What is promised is no more than a server gets that takes a share of what is free, whoever comes first."""
    placements: dict[Role, Placement] = {"target": on(BIG, 4), "draft": on(SMALL)}
    limits: dict[Role, int] = {} if bound is None else {"draft": bound}
    fractions: dict[Role, float] = {"target": target, "draft": draft}
    memory = plan_memory(placements, capacity, replace(SIZES, fractions=fractions, pool_tokens=limits))
    first = memory.envelopes[0]
    assert first.used <= capacity * (1 + 1e-9) or first.missing
    roles: list[Role] = ["target", "draft"]
    for order in (roles, roles[::-1]):
        free = capacity
        for role in order:
            free -= first.models[role].fixed
            assert first.models[role].kv_pool <= max(0.0, free * fractions[role]) * (1 + 1e-9)
            free -= first.models[role].kv_pool
    if bound is not None:
        assert memory.pool_tokens["draft"] <= bound


@given(capacity=st.floats(50e9, 200e9))
def test_balanced_pools_are_reached_by_kv_tokens(capacity: float) -> None:
    """The advice works: with it in the spec, both pools hold that many tokens."""
    placements: dict[Role, Placement] = {"target": on(BIG, 4), "draft": on(SMALL)}
    tokens = balanced_tokens(placements, capacity, SIZES)
    sizes = replace(SIZES, fractions={"target": 0.9, "draft": 0.9}, pool_tokens={"target": tokens, "draft": tokens})
    memory = plan_memory(placements, capacity, sizes)
    assert min(memory.pool_tokens.values()) >= tokens - 1 > 0
    assert memory.sequences(2048) >= plan_memory(placements, capacity, SIZES).sequences(2048)


@given(pool=st.integers(0, 100_000), context=st.integers(1, 4096), block=st.sampled_from([8, 32, 64]))
def test_sequences_fill_whole_blocks(pool: int, context: int, block: int) -> None:
    found = sequences_in(pool, context, 8, block)
    each = -(-(context + 9) // block) * block
    assert found * each <= pool < (found + 1) * each + block


def test_runtime_and_graphs_are_counted() -> None:
    plain = plan_memory({"target": on(BIG, 4)}, 80e9, SIZES).envelopes[0].models["target"].runtime
    graphs = plan_memory({"target": on(BIG, 4)}, 80e9, replace(SIZES, graphs={"target": 32})).envelopes[0]
    assert plain == DEFAULT.runtime_bytes
    assert graphs.models["target"].runtime - plain == 32 * DEFAULT.graph_bytes
