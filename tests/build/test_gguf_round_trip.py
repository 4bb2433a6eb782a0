"""A folder written as F16 GGUF and converted back is the same folder."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_to_hf import GgufFile, convert
from safetensors.numpy import load_file, save_file
from test_gguf_to_hf import HEADS, permute
from test_gguf_to_hf import write_gguf as write_tiny

from pipeline.bench.gguf_writer import EMBEDDING, gguf_name, permute_rope_rows, write_gguf
from pipeline.errors import SpecError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small llama in a Hugging Face folder, with its tokenizer."""
    write_tiny(tmp_path / "tiny.gguf")
    made = tmp_path / "folder"
    made.mkdir()
    convert(tmp_path / "tiny.gguf", made)
    return made


def test_there_and_back(folder: Path, tmp_path: Path) -> None:
    written, back = tmp_path / "gguf" / "f16.gguf", tmp_path / "back"
    write_gguf(folder, folder, written)
    kinds = {tensor.tensor_type for tensor in GgufFile(written).tensors}
    assert kinds == {gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.F32}, "matrices and norms, not quantised"
    back.mkdir()
    convert(written, back)
    before, after = load_file(folder / "model.safetensors"), load_file(back / "model.safetensors")
    assert before.keys() == after.keys()
    for name, weights in before.items():
        assert np.array_equal(weights, after[name]), name
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert json.loads((folder / name).read_text()) == json.loads((back / name).read_text()), name
    assert [path.name for path in written.parent.iterdir()] == ["f16.gguf"], "nothing half-written is left"


def test_query_rows_are_moved_as_llama_cpp_wants_them() -> None:
    weights = np.arange(2 * 8 * 3).reshape(16, 3)
    assert np.array_equal(permute_rope_rows(weights, 2), permute(weights, 2))
    assert not np.array_equal(permute_rope_rows(weights, 2), weights) and HEADS == 4


def test_a_draft_takes_its_targets_embedding(folder: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors.pop(EMBEDDING)
    save_file({name: 2 * weights for name, weights in tensors.items()}, draft / "model.safetensors")
    (draft / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(SpecError, match="no token embedding"):
        write_gguf(draft, folder, tmp_path / "no.gguf")
    assert not (tmp_path / "no.gguf").exists()
    write_gguf(draft, folder, tmp_path / "draft.gguf", folder)
    found = {tensor.name: tensor.data for tensor in GgufFile(tmp_path / "draft.gguf").tensors}
    assert np.array_equal(found["token_embd.weight"], embedding)
    norm = 2 * tensors["model.norm.weight"].astype(np.float32)
    assert np.array_equal(found["output_norm.weight"], norm), "the draft's own, not the target's"
    assert len(found) == len(tensors) + 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "qwen2"}, "model_type = 'qwen2'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "rope_type = 'llama3'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_type = 'linear'"),
    ],
)
def test_what_cannot_be_written_is_refused(
    folder: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(SpecError, match=words):
        write_gguf(folder, folder, tmp_path / "no.gguf")


def test_an_unknown_tensor_is_named() -> None:
    for name in ("model.layers.0.self_attn.q_proj.bias", "model.layers.x.mlp.up_proj.weight", "model.other.weight"):
        with pytest.raises(SpecError, match=name):
            gguf_name(name)
