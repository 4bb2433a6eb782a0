"""Checks that look at model folders: whole, of a known kind, of one tongue, long enough."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doctor.support import (
    CONFIG,
    DRAFT_CONFIG,
    findings_of,
    make_spec,
    severities,
    write_model,
    write_tokenizer,
    write_weights,
)
from pipeline.doctor.checks.folders import Architectures, ModelFolders, missing_files
from pipeline.doctor.checks.lengths import ContextLengths, SlidingWindow
from pipeline.doctor.checks.tokens import ChatTemplates, EndTokens, Tokenizers, VocabularyWidth

HUB = "Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"


def test_whole_folders_pass(target: Path, draft: Path) -> None:
    spec = make_spec(target, draft)
    for check in (ModelFolders, Architectures, Tokenizers, VocabularyWidth, EndTokens, ChatTemplates, ContextLengths):
        found = findings_of(check, spec)
        assert found and severities(found) == ["ok"] * len(found), (check, found)
    assert findings_of(SlidingWindow, spec) == []


def _truncate(folder: Path) -> None:
    write_weights(folder / "model.safetensors", promised=64, written=63)


def _shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    names = {"a": "one.safetensors", "b": "two.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    write_weights(folder / "one.safetensors")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no header"), "the end of model.safetensors"),
        (_truncate, "the end of model.safetensors"),
        (_shards, "two.safetensors"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text("{"),
            "a readable model.safetensors.index",
        ),
    ],
)
def test_an_incomplete_folder_is_an_error(spoil: Callable[[Path], Any], named: str, target: Path, draft: Path) -> None:
    assert missing_files(target, needs_tokenizer=True) == []
    spoil(target)
    first, second = findings_of(ModelFolders, make_spec(target, draft))
    assert (first.severity, second.severity) == ("error", "ok")
    assert named in first.what and "complete" in first.todo


def test_a_folder_that_is_not_there(draft: Path, tmp_path: Path) -> None:
    first, _ = findings_of(ModelFolders, make_spec(tmp_path / "nowhere", draft))
    assert first.severity == "error" and "nowhere does not exist" in first.what


def test_an_unsupported_architecture(target: Path, draft: Path) -> None:
    (target / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["MixtralForCausalLM"]}))
    first, _ = findings_of(ModelFolders, make_spec(target, draft))
    assert first.severity == "error" and "MixtralForCausalLM is not supported" in first.what


def test_what_cannot_be_built(target: Path, draft: Path) -> None:
    """Gemma can be planned; its engine must come from elsewhere."""
    (target / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["Gemma2ForCausalLM"]}))
    assert severities(findings_of(Architectures, make_spec(target, draft))) == ["error", "ok"]
    on_gpu = {"engine": "tensorrt_llm", "target.engine_dir": "elsewhere"}
    assert severities(findings_of(Architectures, make_spec(target, draft, **on_gpu))) == ["ok", "ok"]


def test_weights_that_were_published_quantised(target: Path, draft: Path) -> None:
    (target / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": {"quant_method": "awq"}}))
    first, _ = findings_of(Architectures, make_spec(target, draft))
    assert first.severity == "error" and "published as awq" in first.what


@pytest.mark.parametrize("check", [ModelFolders, Tokenizers, EndTokens])
def test_what_is_not_downloaded_is_not_passed(check: type[ModelFolders]) -> None:
    found = findings_of(check, make_spec(*HUB, engine="tensorrt_llm"))
    assert found and set(severities(found)) == {"not checked"}
    assert all("hf download Qwen/Qwen2.5" in finding.todo for finding in found)


def test_padded_vocabularies_are_said(target: Path, draft: Path) -> None:
    (finding,) = findings_of(VocabularyWidth, make_spec(*HUB, engine="tensorrt_llm"))
    assert finding.severity == "ok" and "152,064 entries at the target, 151,936 at the draft" in finding.what


def test_other_tokens_are_an_error(target: Path, draft: Path) -> None:
    write_tokenizer(draft, swapped=True)
    found = findings_of(Tokenizers, make_spec(target, draft))
    assert set(severities(found)) == {"error"}
    assert any(finding.what.startswith("vocabulary: 2 differ") for finding in found)


def test_padding_is_no_difference(target: Path, draft: Path) -> None:
    (draft / "config.json").write_text(json.dumps({**DRAFT_CONFIG, "vocab_size": 640}))
    assert severities(findings_of(Tokenizers, make_spec(target, draft))) == ["ok"]


def test_a_draft_without_a_tokenizer_takes_the_targets(target: Path, draft: Path) -> None:
    (draft / "tokenizer.json").unlink()
    assert severities(findings_of(Tokenizers, make_spec(target, draft))) == ["ok"]
    assert severities(findings_of(ModelFolders, make_spec(target, draft))) == ["ok", "ok"]


def test_a_damaged_tokenizer(target: Path, draft: Path) -> None:
    (target / "tokenizer.json").write_text("{")
    for check in (Tokenizers, EndTokens):
        (finding,) = findings_of(check, make_spec(target, draft))
        assert finding.severity == "error" and "is damaged" in finding.what


def test_a_target_without_an_end(target: Path) -> None:
    write_tokenizer(target, eos=None)
    (target / "config.json").write_text(json.dumps({**CONFIG, "eos_token_id": None}))
    (finding,) = findings_of(EndTokens, make_spec(target, None))
    assert finding.severity == "warning" and "names no end token" in finding.what


def test_two_ends_that_differ(target: Path) -> None:
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    (target / "config.json").write_text(json.dumps({**CONFIG, "eos_token_id": 5}))
    (finding,) = findings_of(EndTokens, make_spec(target, None))
    assert finding.severity == "warning" and "ends with 1, the model's configuration with [5, 6]" in finding.what
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 6]}))
    (finding,) = findings_of(EndTokens, make_spec(target, None))
    assert finding.severity == "ok" and "[5, 6] end an answer too" in finding.what


def test_a_draft_with_other_ends(target: Path, draft: Path) -> None:
    write_tokenizer(draft, eos="<s>")
    assert severities(findings_of(EndTokens, make_spec(target, draft))) == ["ok", "warning"]


def test_chat_templates(target: Path, draft: Path) -> None:
    write_tokenizer(draft, template="{{ messages }}")
    (finding,) = findings_of(ChatTemplates, make_spec(target, draft))
    assert finding.severity == "warning" and "another one" in finding.what
    (draft / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert severities(findings_of(ChatTemplates, make_spec(target, draft))) == ["ok"]
    write_tokenizer(target, template=None)
    (finding,) = findings_of(ChatTemplates, make_spec(target, draft))
    assert finding.severity == "warning" and "no chat template" in finding.what


@pytest.mark.parametrize(
    ("positions", "expected"),
    [((2048, 2048), ["ok", "ok"]), ((2047, 4096), ["error", "ok"]), ((4096, 2047), ["ok", "warning"])],
)
def test_context_lengths(positions: tuple[int, int], expected: list[str], tmp_path: Path) -> None:
    """The spec promises 2048 tokens."""
    folders = [
        write_model(tmp_path / str(number), {**CONFIG, "max_position_embeddings": length})
        for number, length in enumerate(positions)
    ]
    found = findings_of(ContextLengths, make_spec(*folders))
    assert severities(found) == expected
    assert all(finding.todo for finding in found if finding.severity != "ok")


@pytest.mark.parametrize(("window", "expected"), [(2047, ["error"]), (2048, []), (None, [])])
def test_sliding_windows(window: int | None, expected: list[str], target: Path) -> None:
    (target / "config.json").write_text(json.dumps({**CONFIG, "sliding_window": window}))
    assert severities(findings_of(SlidingWindow, make_spec(target, None))) == expected
