"""The contract is NVIDIA's where it uses NVIDIA's names."""

from __future__ import annotations

import pytest

from pipeline.serving.contract import NUMPY_TYPES, PERF_OUTPUTS, SPEC_DECODE, STEP, STEP_STATS_FIELDS, ModelContract


@pytest.mark.parametrize("contract", [STEP, SPEC_DECODE])
def test_names_are_unique_and_types_known(contract: ModelContract) -> None:
    for specs in (contract.inputs, contract.outputs):
        assert len({spec.name for spec in specs}) == len(specs)
        assert all(spec.kind in NUMPY_TYPES for spec in specs)


def test_step_model_has_nvidias_shapes() -> None:
    assert STEP.max_batch_size == 1 and not STEP.decoupled
    assert STEP.input("input_ids").dims == (-1,) and STEP.input("input_ids").ragged
    assert STEP.input("draft_logits").dims == (-1, -1)
    assert STEP.input("seed").kind == "UINT64" and STEP.input("seed").scalar
    assert [spec.name for spec in STEP.inputs if not spec.optional] == ["input_lengths", "request_output_len"]
    assert STEP.output("output_ids").dims == (-1, -1)
    assert STEP.output("generation_logits").dims == (-1, -1, -1)
    assert [spec.name for spec in STEP.outputs if spec.own] == ["specdec_step_stats"]
    assert {*PERF_OUTPUTS} <= {spec.name for spec in STEP.outputs}
    assert STEP.output("specdec_step_stats").dims == (len(STEP_STATS_FIELDS),)


def test_spec_decode_needs_the_prompt_only() -> None:
    assert SPEC_DECODE.decoupled
    assert [spec.name for spec in SPEC_DECODE.inputs if not spec.optional] == ["text_input"]
    with pytest.raises(KeyError):
        SPEC_DECODE.input("beam_width")
