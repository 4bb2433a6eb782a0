"""Shapes from config.json: counted parameters equal those of the published checkpoints, bad files are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import EngineError
from pipeline.planning.model_shape import SHAPES, ModelShape, known_ids
from pipeline.planning.placement import Placement

# Elements of the tensors in the published safetensors files; a tied LM head counts once.
PUBLISHED = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B-Instruct": 14_770_033_664,
    "Qwen/Qwen2.5-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
    "google/gemma-2-2b-it": 2_614_341_888,
    "google/gemma-2-27b-it": 27_227_128_320,
}
LLAMA = json.loads((SHAPES / "meta-llama--Llama-3.1-8B.json").read_text())


@pytest.mark.parametrize("hub_id", PUBLISHED)
def test_parameters_equal_the_checkpoint(hub_id: str) -> None:
    assert ModelShape.known(hub_id).parameters == PUBLISHED[hub_id]


def test_every_shape_that_ships_is_read() -> None:
    assert set(PUBLISHED) <= set(known_ids())
    for hub_id in known_ids():
        assert Placement(ModelShape.known(hub_id)).rank_token_bytes > 0


def test_kv_of_llama_70b() -> None:
    """80 layers x 8 heads x 128 x 2: 320 KiB a token in 16 bits, an eighth of what 64 heads would take."""
    shape = ModelShape.known("meta-llama/Llama-3.1-70B")
    assert Placement(shape).rank_token_bytes == 320 * 1024
    assert shape.heads == 8 * shape.kv_heads


def test_unknown_hub_id_names_the_nearest() -> None:
    with pytest.raises(EngineError, match=r"Llama-3.1-70b: .* \(nearest: meta-llama/Llama-3.1-70B\)"):
        ModelShape.known("meta-llama/Llama-3.1-70b")
    with pytest.raises(EngineError, match="is not in"):
        ModelShape.known("no-owner")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["MixtralForCausalLM"]},
            "architecture MixtralForCausalLM is not supported; supported: .*Llama",
        ),
        ({"architectures": []}, "architecture none is not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0 must be a whole number above 0"),
        ({"vocab_size": "many"}, "vocab_size = 'many' must be a whole number above 0"),
        ({"intermediate_size": True}, "intermediate_size = True must be"),
        ({"num_key_value_heads": 5}, "num_key_value_heads = 5 does not divide num_attention_heads = 32"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        ModelShape.from_dict({**LLAMA, **changes}, "there/config.json")


def test_a_missing_or_broken_file(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"config.json cannot be read: No such file"):
        ModelShape.read(tmp_path)
    path = tmp_path / "config.json"
    for text, message in (("{", "is not valid JSON"), ("[]", "is not a JSON object")):
        path.write_text(text)
        with pytest.raises(EngineError, match=message):
            ModelShape.read(tmp_path)
    path.write_text(json.dumps(LLAMA))
    assert ModelShape.read(tmp_path) == ModelShape.known("meta-llama/Llama-3.1-8B")


def test_defaults_of_older_files() -> None:
    """Without head_dim and KV heads: hidden over heads, and every head its own."""
    data = {key: value for key, value in LLAMA.items() if key not in ("head_dim", "num_key_value_heads")}
    shape = ModelShape.from_dict(data)
    assert (shape.head_dim, shape.kv_heads) == (128, 32)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"sliding_window": 4096}, 4096),
        ({"sliding_window": 4096, "use_sliding_window": False}, None),
        ({"sliding_window": None}, None),
    ],
)
def test_sliding_window(changes: dict[str, Any], window: int | None) -> None:
    assert ModelShape.from_dict({**LLAMA, **changes}).sliding_window == window


def test_end_tokens_and_quantisation() -> None:
    one = ModelShape.from_dict({**LLAMA, "eos_token_id": 7})
    several = ModelShape.from_dict({**LLAMA, "eos_token_id": [7, 8], "quantization_config": {"quant_method": "awq"}})
    none = ModelShape.from_dict({**LLAMA, "eos_token_id": None})
    assert (one.eos_ids, several.eos_ids, none.eos_ids) == ((7,), (7, 8), ())
    assert (one.quantization, several.quantization) == (None, "awq")


@given(layers=st.integers(1, 64), tied=st.booleans())
def test_parameters_grow_by_whole_layers(layers: int, tied: bool) -> None:
    data = {**LLAMA, "tie_word_embeddings": tied}
    less = ModelShape.from_dict({**data, "num_hidden_layers": layers})
    more = ModelShape.from_dict({**data, "num_hidden_layers": layers + 1})
    assert more.parameters - less.parameters == more.layer_products + more.layer_rest
    assert less.parameters > (1 if tied else 2) * less.head
