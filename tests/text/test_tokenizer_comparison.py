from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import EngineError
from pipeline.spec import ROOT
from pipeline.text.compare import MAX_DIFFERENCES, compare_tokenizers, require_equal_tokenizers
from pipeline.text.tokenizer import Tokenizer

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture
def draft(byte_level_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(byte_level_folder, tmp_path / "draft"))


def edit(folder: Path, change: Edit) -> None:
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_equal_content_in_another_file_format(byte_level_folder: Path, draft: Path) -> None:
    def rewrite(data: dict[str, Any]) -> None:
        data["model"]["merges"] = [" ".join(merge) for merge in data["model"]["merges"]]
        data["model"]["continuing_subword_prefix"] = ""
        data["pre_tokenizer"]["trim_offsets"] = not data["pre_tokenizer"]["trim_offsets"]
        data["decoder"]["add_prefix_space"] = not data["decoder"]["add_prefix_space"]

    edit(draft, rewrite)
    comparison = compare_tokenizers(byte_level_folder, draft)
    assert comparison.equal and comparison.differences == ()
    require_equal_tokenizers(byte_level_folder, draft)


def test_padding_of_the_vocabulary_is_tolerated(byte_level_folder: Path, draft: Path) -> None:
    size = Tokenizer.load(draft).vocab_size
    (draft / "config.json").write_text(json.dumps({"vocab_size": size + 128}))
    assert compare_tokenizers(byte_level_folder, draft).equal
    (draft / "config.json").write_text(json.dumps({"vocab_size": size - 1}))
    assert f"vocab_size = {size - 1}" in compare_tokenizers(byte_level_folder, draft).differences[0]


def _swap_two_tokens(data: dict[str, Any]) -> None:
    vocabulary = data["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]


def _rename_added(data: dict[str, Any]) -> None:
    data["added_tokens"][-1]["content"] = "<other>"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_swap_two_tokens, "vocabulary: 2 differ"),
        (_rename_added, "added tokens: 1 not in the"),
        (lambda data: data["added_tokens"][1].update(special=False), "added tokens: 1 differ"),
        (lambda data: data["model"]["merges"].reverse(), "merges: "),
        (lambda data: data.update(normalizer={"type": "NFC"}), "normalizer: None in the target"),
        (lambda data: data["pre_tokenizer"].update(use_regex=False), "pre_tokenizer: "),
        (lambda data: data.update(decoder={"type": "Fuse"}), "decoder: "),
        (lambda data: data["model"].update(ignore_merges=True), "model ignore_merges: "),
    ],
)
def test_each_difference_is_named(byte_level_folder: Path, draft: Path, change: Edit, named: str) -> None:
    edit(draft, change)
    comparison = compare_tokenizers(byte_level_folder, draft)
    assert not comparison.equal
    assert any(named in line for line in comparison.differences)
    with pytest.raises(EngineError, match="does not have the tokenizer of target"):
        require_equal_tokenizers(byte_level_folder, draft)


def test_differences_are_bounded(byte_level_folder: Path, byte_fallback_folder: Path) -> None:
    comparison = compare_tokenizers(byte_level_folder, byte_fallback_folder)
    assert len(comparison.differences) == MAX_DIFFERENCES
    assert all(len(line) < 300 for line in comparison.differences)


def test_other_text_processing_shows_in_the_corpus(byte_level_folder: Path, draft: Path) -> None:
    edit(draft, lambda data: data["pre_tokenizer"].update(add_prefix_space=True))
    differences = compare_tokenizers(byte_level_folder, draft).differences
    assert any(line.startswith("'Hello, world!' parts at token 0: ") for line in differences)


def test_draft_without_tokenizer_takes_the_targets(byte_level_folder: Path, tmp_path: Path) -> None:
    size = Tokenizer.load(byte_level_folder).vocab_size
    assert "neither" in compare_tokenizers(byte_level_folder, tmp_path).differences[0]
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size}))
    assert compare_tokenizers(byte_level_folder, tmp_path).equal
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size - 1}))
    assert not compare_tokenizers(byte_level_folder, tmp_path).equal
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size}))
    (tmp_path / "tokenizer.model").touch()
    assert "tokenizer.model" in compare_tokenizers(byte_level_folder, tmp_path).differences[0]


def test_target_needs_a_tokenizer(byte_level_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="missing"):
        compare_tokenizers(tmp_path, byte_level_folder)


@pytest.mark.demo
def test_demo_draft_takes_the_demo_targets(demo_folder: Path) -> None:
    require_equal_tokenizers(demo_folder, ROOT / "build" / "models" / "smollm2-135m-draft-4l")
