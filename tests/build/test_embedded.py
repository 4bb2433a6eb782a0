"""build_engines on small random models: what it writes, when it builds again, what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import embedded
import pytest
import torch
from model_folders import VOCAB, WORDS, make_spec, write_model, write_tokenizer
from safetensors.torch import load_file

import pipeline.spec
from pipeline.engine.decoder import Decoder
from pipeline.engine.embedded import load_step_model
from pipeline.engine.manifest import Manifest
from pipeline.engine.step import StepRequest
from pipeline.errors import EngineError
from pipeline.spec import DeploymentSpec


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pipeline.spec, "ROOT", tmp_path)
    monkeypatch.setattr(embedded, "COST_REPEATS", 1)
    return tmp_path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target-model")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_model(tmp_path / "draft-model", seed=1)


def build(spec: DeploymentSpec, target: Path, draft: Path | None) -> list[str]:
    """What was reported."""
    lines: list[str] = []
    embedded.build_engines(spec, target, draft, lines.append)
    return lines


def built(lines: list[str]) -> set[str]:
    """Roles that were made, as opposed to found up to date."""
    return {line.split(":")[0] for line in lines if "fusing" in line}


def test_engines_are_whole_and_say_what_they_are(target: Path, draft: Path) -> None:
    """Both folders load, and their manifests name sizes, end token, costs and roles."""
    spec = make_spec()
    assert built(build(spec, target, draft)) == {"target", "draft"}
    for role in ("target", "draft"):
        folder = spec.engine_dir(role)
        manifest = Manifest.read(folder)
        manifest.verify_files(folder)
        assert (manifest.role, manifest.vocab_size, manifest.padded_vocab_size) == (role, len(WORDS), VOCAB)
        # The configuration lists two end tokens: the tokenizer's is the one that ends an answer.
        assert manifest.end_id == WORDS.index("</s>")
        assert manifest.limits.max_draft_len == (4 if role == "target" else 0)
        assert manifest.limits.kv_blocks == 12 and manifest.limits.max_seq_len == 48
        assert all(seconds > 0 for seconds in manifest.cost.seconds_by_tokens.values())
        assert {"config.json", "tokenizer.json", "weights.safetensors"} <= manifest.files.keys()
        model = load_step_model(folder, threads=1)
        assert len(model.submit(StepRequest("a", (1, 5, 6), 4)).result(20).output_ids) == 4
        model.close()
    assert sorted(path.name for path in spec.engines_dir.iterdir()) == ["draft", "target"]


def test_second_run_changes_nothing(target: Path, draft: Path) -> None:
    """Engines whose inputs are the same are left alone, to the byte and the second."""
    spec = make_spec()
    build(spec, target, draft)
    before = {path: path.stat().st_mtime_ns for path in spec.engines_dir.rglob("*")}
    lines = build(spec, target, draft)
    assert "target: up to date" in lines and "draft: up to date" in lines
    assert before == {path: path.stat().st_mtime_ns for path in spec.engines_dir.rglob("*")}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dtype": "float16"}, {"target", "draft"}),
        ({"limits": {"max_seq_len": 40}}, {"target", "draft"}),
        ({"limits": {"max_draft_len": 3}}, {"target"}),
        ({"target": {"kv_blocks": 16}}, {"target"}),
        ({"draft": {"threads": 2}}, {"draft"}),
        ({"draft": {"head_tokens": 5}}, {"draft"}),
        ({"rule": "token", "controller": {"kind": "fixed"}}, set()),
    ],
)
def test_a_changed_spec_builds_what_it_touches(
    target: Path, draft: Path, changes: dict[str, Any], expected: set[str]
) -> None:
    """What an engine depends on makes it anew, what it does not leaves it alone."""
    (draft / "frequent_token_ids.json").write_text(json.dumps(list(range(10))))
    build(make_spec(), target, draft)
    assert built(build(make_spec(**changes), target, draft)) == expected


def test_changed_files_build_again(target: Path, draft: Path) -> None:
    """New weights, a new configuration, another chat template, or a damaged engine: that engine is made anew."""
    spec = make_spec()
    build(spec, target, draft)
    write_model(target, seed=5)
    assert built(build(spec, target, draft)) == {"target"}
    write_model(draft, seed=1, max_position_embeddings=48)
    assert built(build(spec, target, draft)) == {"draft"}
    (target / "chat_template.jinja").write_text("{{ messages }}")
    assert built(build(spec, target, draft)) == {"target"}
    os.truncate(spec.engine_dir("draft") / "weights.safetensors", 100)
    assert built(build(spec, target, draft)) == {"draft"}
    assert built(build(spec, target, draft)) == set()


def test_target_alone(target: Path) -> None:
    """Without a draft model there is a target engine and nothing else."""
    spec = make_spec(draft={"kind": "ngram", "model": None})
    assert built(build(spec, target, None)) == {"target"}
    assert [path.name for path in spec.engines_dir.iterdir()] == ["target"]


def test_draft_takes_what_it_lacks_from_its_target(target: Path, tmp_path: Path) -> None:
    """Embedding and tokenizer of the target serve a draft that has none, and its hash then counts the target's."""
    draft = write_model(tmp_path / "bare", seed=1, embedding=False, tokenizer=False)
    spec = make_spec()
    build(spec, target, draft)
    folder = spec.engine_dir("draft")
    ours = load_file(folder / "weights.safetensors")["embedding"]
    assert torch.equal(ours, load_file(target / "model.safetensors")["model.embed_tokens.weight"])
    assert (folder / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    write_model(target, seed=5)
    assert built(build(spec, target, draft)) == {"target", "draft"}


def test_head_tokens_keep_the_most_frequent(target: Path, draft: Path) -> None:
    """The draft's head holds the first ids of the ranking, in its order; another ranking builds again."""
    ranking = draft / "frequent_token_ids.json"
    ranking.write_text(json.dumps([7, 3, 30, 9, 11, 12]))
    spec = make_spec(draft={"head_tokens": 4})
    build(spec, target, draft)
    weights = load_file(spec.engine_dir("draft") / "weights.safetensors")
    assert weights["head_ids"].tolist() == [7, 3, 30, 9]
    assert torch.equal(weights["head"], weights["embedding"][[7, 3, 30, 9]])
    assert "head" not in load_file(spec.engine_dir("target") / "weights.safetensors")
    ranking.write_text(json.dumps([8, 3, 30, 9, 11, 12]))
    assert built(build(spec, target, draft)) == {"draft"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "draft.head_tokens = 4 needs .*frequent_token_ids.json"),
        ("[1, 2, 3]", "at least draft.head_tokens = 4 distinct token ids below 40"),
        ("[1, 2, 3, 3]", "distinct token ids"),
        ("[1, 2, 3, 40]", "below 40"),
        ("[1, 2", "not a JSON list of token ids"),
        ("7", "not a JSON list of token ids"),
    ],
)
def test_bad_ranking_is_refused(target: Path, draft: Path, content: str | None, message: str) -> None:
    """A ranking that is missing, short, doubled, out of range or no list is named; no half-made engine stays."""
    if content is not None:
        (draft / "frequent_token_ids.json").write_text(content)
    spec = make_spec(draft={"head_tokens": 4})
    with pytest.raises(EngineError, match=message):
        build(spec, target, draft)
    assert [path.name for path in spec.engines_dir.iterdir()] == ["target"]


def test_foreign_tokenizer_is_refused(target: Path, draft: Path) -> None:
    """A draft that speaks other tokens is refused before anything is built."""
    write_tokenizer(draft, [*WORDS[:-1], "stranger"])
    spec = make_spec()
    with pytest.raises(EngineError, match=r"does not have the tokenizer of target .*stranger"):
        build(spec, target, draft)
    assert not spec.engines_dir.exists()


def test_unsuitable_models_are_refused(target: Path, draft: Path) -> None:
    """Another architecture, a short context, wrong shapes and truncated weights: one line that names the cause."""
    spec = make_spec()
    with pytest.raises(EngineError, match=r"max_seq_len = 48: the target's context is 32 tokens"):
        build(spec, write_model(target, max_position_embeddings=32), draft)
    with pytest.raises(EngineError, match=r"GemmaForCausalLM is not supported; supported: Llama"):
        build(spec, write_model(target, architectures=["GemmaForCausalLM"]), draft)
    with pytest.raises(EngineError, match=r"embedding is \(40, 16\), config.json says \(50, 16\)"):
        build(spec, write_model(target, vocab_size=50), draft)
    with pytest.raises(EngineError, match=r"tensor lm_head.weight is missing"):
        build(spec, write_model(target, tie_word_embeddings=False), draft)
    write_model(target)
    os.truncate(target / "model.safetensors", 3000)
    with pytest.raises(EngineError, match=r"model.safetensors is damaged or truncated"):
        build(spec, target, draft)
    (target / "model.safetensors").unlink()
    with pytest.raises(EngineError, match=r"model.safetensors is missing"):
        build(spec, target, draft)
    assert not any(spec.engines_dir.rglob("manifest.json"))


def test_failed_build_keeps_the_old_engine(target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine is replaced only when the new one is whole."""
    spec = make_spec()
    build(spec, target, draft)
    write_model(target, seed=5)

    def explode(*_: object) -> None:
        raise EngineError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(embedded, "measure_cost", explode)
        with pytest.raises(EngineError, match="planted"):
            build(spec, target, draft)
    Manifest.read(spec.engine_dir("target")).verify_files(spec.engine_dir("target"))
    assert sorted(path.name for path in spec.engines_dir.iterdir()) == ["draft", "target"]


def test_short_draft_context_is_its_own_limit(target: Path, tmp_path: Path) -> None:
    """A draft with a shorter context is built with it; costs are measured within what it holds."""
    draft = write_model(tmp_path / "short", seed=1, max_position_embeddings=20)
    spec = make_spec()
    build(spec, target, draft)
    manifest = Manifest.read(spec.engine_dir("draft"))
    assert manifest.limits.max_seq_len == 20
    assert max(manifest.cost.seconds_by_tokens) + manifest.cost.context_tokens <= 20


def test_threads_of_each_role_measure_its_costs(target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine is measured with its own threads, also a target that never verifies."""
    used: list[int] = []
    original = embedded.make_decoder

    def watched(*args: Any) -> Decoder:
        used.append(args[4])  # threads
        return original(*args)

    monkeypatch.setattr(embedded, "make_decoder", watched)
    spec = make_spec(limits={"max_draft_len": 0}, target={"threads": 2}, draft={"threads": 0})
    build(spec, target, draft)
    assert used == [2, 0]
