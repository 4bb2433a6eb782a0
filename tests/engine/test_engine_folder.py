"""Engine and model folders on disk: loading, hashes, versions, damage, unsupported models."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import LIMITS, SHAPE, TinyModel

from pipeline.engine.embedded import load_step_model
from pipeline.engine.manifest import MANIFEST_VERSION, Capabilities, CostTable, Manifest, sha256_file
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.step import StepRequest
from pipeline.engine.weights import WEIGHTS_NAME, CheckpointReader, fused_tensors, save_weights
from pipeline.errors import EngineError

PROMPT = (57, 82, 25, 87)


@pytest.fixture
def engine(tiny: TinyModel, tmp_path: Path) -> Path:
    """An engine folder as `make engines` leaves it, without a tokenizer."""
    config = ModelConfig.read(tiny.folder)
    save_weights(tmp_path, fused_tensors(config, CheckpointReader(tiny.folder), None, None), "float32")
    shutil.copy(tiny.folder / "config.json", tmp_path)
    Manifest(
        version=MANIFEST_VERSION,
        role="target",
        engine="embedded",
        model="tiny",
        source_sha256="",
        dtype="float32",
        vocab_size=90,
        padded_vocab_size=97,
        end_id=2,
        files={path.name: sha256_file(path) for path in tmp_path.iterdir()},
        limits=LIMITS,
        capabilities=Capabilities(
            rules=("block", "token", "match"),
            draft_options=(),
            generation_logits="log_law",
            log_probs=False,
            drops_drafts=False,
            deterministic=True,
        ),
        cost=CostTable(context_tokens=1, seconds_by_tokens={1: 1.0}),
        built_with={},
    ).write(tmp_path)
    return tmp_path


def test_loaded_engine_gives_the_models_text(engine: Path, tiny: TinyModel) -> None:
    """From a folder to transformers' greedy text."""
    model = load_step_model(engine, threads=1)
    try:
        assert model.submit(StepRequest("a", PROMPT, 8)).result(20).output_ids == tiny.greedy(PROMPT, 8)
        assert model.kv.pool.num_blocks == LIMITS.kv_blocks
    finally:
        model.close()


@pytest.mark.parametrize(("role", "copied"), [("target", 1), ("draft", 0)])
def test_role_decides_who_keeps_a_rejected_tail(engine: Path, role: str, copied: int) -> None:
    """A draft writes over its own rejected tokens; a target leaves what is indexed alone and takes a new block."""
    change_manifest(role=role)(engine)
    model = load_step_model(engine, threads=1)
    try:
        first = model.submit(StepRequest("a", PROMPT[:2], 2)).result(20)
        assert first.kv.computed_tokens == 3
        again = model.submit(StepRequest("b", (*PROMPT[:2], 0), 1)).result(20)
        assert (again.kv.reused_tokens, again.kv.alloc_new_blocks) == (2, copied)
    finally:
        model.close()


def truncate(engine: Path) -> None:
    os.truncate(engine / WEIGHTS_NAME, (engine / WEIGHTS_NAME).stat().st_size // 2)


def flip_a_byte(engine: Path) -> None:
    data = bytearray((engine / WEIGHTS_NAME).read_bytes())
    data[-100] ^= 1
    (engine / WEIGHTS_NAME).write_bytes(data)


def change_manifest(**changes: Any) -> Callable[[Path], None]:
    def change(engine: Path) -> None:
        data = json.loads((engine / "manifest.json").read_text())
        (engine / "manifest.json").write_text(json.dumps({**data, **changes}))

    return change


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no folder": (shutil.rmtree, r"no engine in .*manifest.json is missing; run `make engines` first"),
    "no manifest": (lambda engine: (engine / "manifest.json").unlink(), "manifest.json is missing; run `make engines`"),
    "manifest is no JSON": (lambda engine: (engine / "manifest.json").write_text("{"), "is not a manifest"),
    "unknown manifest key": (change_manifest(surprise=1), "is not a manifest of this version"),
    "other version": (change_manifest(version=99), "manifest version 99, this release reads 1; run `make engines` ag"),
    "no weights": (lambda engine: (engine / WEIGHTS_NAME).unlink(), "weights.safetensors is missing; run `make eng"),
    "truncated weights": (truncate, r"weights.safetensors is damaged \(\d+ bytes, sha256"),
    "flipped byte": (flip_a_byte, r"weights.safetensors is damaged .* expected"),
    "changed configuration": (lambda engine: (engine / "config.json").write_text("{}"), "config.json is damaged"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_engine_is_refused_by_name(engine: Path, name: str) -> None:
    """Whatever is missing, cut, changed or of another release is named, with what to do."""
    damage, message = DAMAGE[name]
    damage(engine)
    with pytest.raises(EngineError, match=message):
        load_step_model(engine)


def test_costs_between_and_beyond_measured_sizes() -> None:
    """Linear between two sizes, in proportion beyond the last, flat below the first."""
    table = CostTable(context_tokens=8, seconds_by_tokens={1: 1.0, 3: 2.0, 4: 4.0})
    assert [table.seconds(n) for n in (0, 1, 2, 3, 4, 8)] == [1.0, 1.0, 1.5, 2.0, 4.0, 8.0]


LLAMA = {**SHAPE, "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5}
REFUSED_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; supported: Llama"),
    "no architecture": ({"architectures": None}, "architecture none is not supported"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act gelu is not supported"),
    "rope type": ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope type yarn is not supported"),
    "rope without factor": ({"rope_scaling": {"rope_type": "llama3"}}, "config.json: factor is missing"),
    "window": (
        {"architectures": ["MistralForCausalLM"], "sliding_window": 128},
        "sliding_window 128 is not supported",
    ),
    "missing size": ({"hidden_size": None}, "wrong type"),
}


@pytest.mark.parametrize("name", REFUSED_CONFIGS)
def test_unsupported_model_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """What the engine would compute wrongly is refused, with the value and what is supported."""
    changes, message = REFUSED_CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    with pytest.raises(EngineError, match=message):
        ModelConfig.read(tmp_path)


def test_config_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing or broken config.json is an error in one line."""
    for text, message in ((None, "cannot be read"), ("{", "not valid JSON"), ("[]", "not a JSON object")):
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        with pytest.raises(EngineError, match=message):
            ModelConfig.read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in LLAMA.items() if k != "vocab_size"}))
    with pytest.raises(EngineError, match="vocab_size is missing"):
        ModelConfig.read(tmp_path)


def test_window_as_wide_as_the_context_is_no_window(tmp_path: Path) -> None:
    """A sliding window that never slides, or is switched off, is accepted."""
    for changes in (
        {"architectures": ["MistralForCausalLM"], "sliding_window": 256},
        {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 16, "use_sliding_window": False},
    ):
        (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
        assert ModelConfig.read(tmp_path).max_position_embeddings == 256


def test_sharded_checkpoint_equals_one_file(tiny: TinyModel, tmp_path: Path) -> None:
    """Weights in several files give the same tensors; a missing part or a broken index is named."""
    tiny.reference.save_pretrained(tmp_path, max_shard_size="20KB")
    whole, parts = CheckpointReader(tiny.folder), CheckpointReader(tmp_path)
    assert len(parts.files) > 1
    config = ModelConfig.read(tmp_path)
    expected = dict(fused_tensors(config, whole, None, None))
    found = dict(fused_tensors(config, parts, None, None))
    assert found.keys() == expected.keys() and all(found[name].equal(expected[name]) for name in found)
    parts.files[0].unlink()
    with pytest.raises(EngineError, match=f"{parts.files[0].name} is missing"):
        CheckpointReader(tmp_path)
    for broken in ("{", "{}", "[]"):
        (tmp_path / "model.safetensors.index.json").write_text(broken)
        with pytest.raises(EngineError, match=r"index.json is damaged"):
            CheckpointReader(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["lm_head.weight", "model.norm.weight", "model.layers.1.self_attn.q_proj.weight", "model.embed_tokens.weight"],
)
def test_missing_tensor_is_named(tiny: TinyModel, name: str) -> None:
    """A checkpoint that lacks a tensor is refused; an untied head is never replaced by the embedding."""
    reader = CheckpointReader(tiny.folder)
    del reader._where[name]
    with pytest.raises(EngineError, match=f"tensor {name} is missing"):
        dict(fused_tensors(ModelConfig.read(tiny.folder), reader, None, None))
