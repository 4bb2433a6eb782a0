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
    assert STEP.input("embedding_bias").dims == (-1,) and STEP.input("bad_words_list").dims == (2, -1)
    assert STEP.output("output_log_probs").dims == (-1, -1) and STEP.output("cum_log_probs").dims == (-1,)
    assert [spec.name for spec in STEP.inputs if spec.own] == ["runtime_min_p"]
    assert [spec.name for spec in STEP.outputs if spec.own] == ["specdec_step_stats"]
    assert {*PERF_OUTPUTS} <= {spec.name for spec in STEP.outputs}
    assert STEP.output("specdec_step_stats").dims == (len(STEP_STATS_FIELDS),)


def test_spec_decode_needs_the_prompt_only() -> None:
    assert SPEC_DECODE.decoupled
    assert [spec.name for spec in SPEC_DECODE.inputs if not spec.optional] == ["text_input"]


def test_spec_decode_declares_every_input_of_nvidias_model() -> None:
    """What is not offered is declared too: it is refused by us, by name, and not by Triton as unexpected."""
    names = """
        text_input decoder_text_input image_input image_bytes_input image_url_input video_bytes_input max_tokens
        bad_words stop_words exclude_input_in_output end_id pad_id top_k top_p temperature length_penalty
        repetition_penalty min_tokens presence_penalty frequency_penalty seed return_log_probs return_context_logits
        return_generation_logits num_return_sequences beam_width stream prompt_embedding_table prompt_vocab_size
        prompt_table_extra_id embedding_bias_words embedding_bias_weights num_draft_tokens use_draft_logits
        lora_task_id lora_weights lora_config return_perf_metrics return_num_input_tokens return_num_output_tokens
        guided_decoding_guide_type guided_decoding_guide
    """
    assert {spec.name for spec in SPEC_DECODE.inputs if not spec.own} == set(names.split())
