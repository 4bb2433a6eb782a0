"""TensorRT engines, from spec to manifest, with programs that write what the real ones write."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from fake_tensorrt import FakeTensorRT
from model_folders import VOCAB, WORDS, write_model
from tensorrt_builds import EVERYTHING, build, make_spec

from pipeline.engine.fit import read_engine_manifest
from pipeline.engine.manifest import Manifest
from pipeline.engine.tensorrt_capabilities import TENSORRT_LLM_CAPABILITIES
from pipeline.errors import EngineError
from pipeline.serving.dialect import Dialect


def test_both_engines_and_their_manifests(fake: FakeTensorRT) -> None:
    """Each step runs once; the manifests say what the engines can do, and read back as the spec's."""
    spec = make_spec(fake)
    build(spec)
    assert fake.calls() == EVERYTHING
    for role in spec.model_roles:
        manifest = read_engine_manifest(spec, role)
        folder = spec.engine_dir(role)
        manifest.verify_files(folder)
        assert {"engine/rank0.engine", "engine/config.json", "tokenizer.json"} <= manifest.files.keys()
        assert manifest.tensorrt is not None and manifest.engine_path(folder) == folder / "engine"
        facts = manifest.tensorrt
        assert (facts.tensorrt_llm, facts.tensorrt, facts.compute_capability) == ("1.2.1", "10.14.1.48", "9.0")
        assert (manifest.vocab_size, manifest.padded_vocab_size) == (len(WORDS), VOCAB)
        assert manifest.capabilities == TENSORRT_LLM_CAPABILITIES
        # How the adapter will speak with it: nothing of ours, over all columns of the weights.
        dialect = Dialect.of(manifest)
        assert not dialect.own_tensors and dialect.one_hot_logits and dialect.temperature_first
        assert (dialect.vocab_size, dialect.width, dialect.max_seq_len) == (VOCAB, VOCAB, manifest.limits.max_seq_len)
        assert manifest.end_id == WORDS.index("</s>")
        assert not manifest.cost.measured and manifest.cost.seconds(1) > 0
        # 4 requests of 48 + 4 + 1 tokens in blocks of 8
        assert manifest.limits.kv_blocks == 4 * 7
    target, draft = (Manifest.read(spec.engine_dir(role)) for role in spec.model_roles)
    assert (target.limits.max_draft_len, draft.limits.max_draft_len) == (4, 0)
    assert target.tensorrt is not None and draft.tensorrt is not None
    assert "--speculative_decoding_mode" in target.tensorrt.build_arguments
    assert "--gather_generation_logits" not in target.tensorrt.build_arguments
    assert "--gather_generation_logits" in draft.tensorrt.build_arguments
    assert "--max_draft_len" not in draft.tensorrt.build_arguments
    assert (spec.engines_dir / "timing.cache").read_bytes() == b"timings"
    log = (spec.engines_dir / "logs" / "target.build.log").read_text()
    assert log.startswith("$ ") and "trtllm-build" in log and "working on target" in log


def test_unchanged_inputs_build_nothing(fake: FakeTensorRT) -> None:
    """Also when the converted checkpoints were removed to save space; what only serving reads compiles nothing."""
    spec = make_spec(fake)
    build(spec)
    fake.calls()
    assert [line for line in build(spec) if "up to date" in line] == ["target: up to date", "draft: up to date"]
    shutil.rmtree(spec.engines_dir / "checkpoints")
    build(make_spec(fake, ports={"http": 9000}, target={"kv_fraction": 0.5}, tensorrt_llm={"workers": 1}))
    assert fake.calls() == []
    changed = make_spec(fake, target={"kv_tokens": 800})
    assert any("manifest written again" in line for line in build(changed))
    assert fake.calls() == [] and read_engine_manifest(changed, "target").limits.kv_blocks == 100


@pytest.mark.parametrize(
    ("change", "calls"),
    [
        ({"limits": {"max_draft_len": 5}}, ["build target", "build draft"]),
        ({"draft": {"sampling": "greedy"}}, ["build draft"]),
        ({"target": {"weights": "int8"}}, ["convert target", "build target"]),
        ({"tensorrt_llm": {"multiple_profiles": False}}, ["build target", "build draft"]),
    ],
)
def test_a_change_builds_what_depends_on_it(fake: FakeTensorRT, change: dict[str, Any], calls: list[str]) -> None:
    build(make_spec(fake))
    fake.calls()
    build(make_spec(fake, **change))
    assert fake.calls() == calls


def test_changed_weights_version_and_gpu(fake: FakeTensorRT, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(fake)
    build(spec)
    fake.calls()
    write_model(fake.folder.parent / "target", seed=9)
    build(spec)
    assert fake.calls() == ["convert target", "build target"]
    monkeypatch.setenv("FAKE_GPU", "NVIDIA A100-SXM4-80GB, 8.0")
    build(spec)
    assert fake.calls() == ["build target", "build draft"]
    fake.install("1.2.0")
    monkeypatch.setenv("FAKE_VERSION", "1.2.0")
    build(spec)
    assert fake.calls() == EVERYTHING


@pytest.mark.parametrize(
    ("fails", "done", "left"),
    [
        ("convert:target", ["convert target"], EVERYTHING),
        ("build:target", ["convert target", "build target"], EVERYTHING[1:]),
        ("build:draft", EVERYTHING, ["build draft"]),
    ],
)
def test_a_failure_is_resumed(
    fake: FakeTensorRT, monkeypatch: pytest.MonkeyPatch, fails: str, done: list[str], left: list[str]
) -> None:
    """What was finished is kept; the error has the program's last words and the log."""
    spec = make_spec(fake)
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_FAIL", fails)
        with pytest.raises(EngineError, match=r"failed \(status 3\): .*planted failure \(log: .*\.log\)"):
            build(spec)
    assert fake.calls() == done
    assert not (spec.engine_dir("draft") / "manifest.json").exists()
    build(spec)
    assert fake.calls() == left
    for role in spec.model_roles:
        read_engine_manifest(spec, role).verify_files(spec.engine_dir(role))


def test_a_failed_rebuild_keeps_the_old_engine(fake: FakeTensorRT, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(fake)
    build(spec)
    monkeypatch.setenv("FAKE_FAIL", "build:target")
    with pytest.raises(EngineError, match="planted failure"):
        build(make_spec(fake, limits={"max_draft_len": 6}))
    read_engine_manifest(spec, "target").verify_files(spec.engine_dir("target"))


def test_a_damaged_engine_is_built_again(fake: FakeTensorRT) -> None:
    spec = make_spec(fake)
    build(spec)
    fake.calls()
    (spec.engine_dir("draft") / "engine" / "rank0.engine").write_bytes(b"")
    assert any("missing or damaged" in line for line in build(spec))
    assert fake.calls() == ["build draft"]


def test_several_ranks_and_fp8(fake: FakeTensorRT) -> None:
    """Two ranks of a quantised target: quantize.py, one engine file each."""
    spec = make_spec(fake, target={"pipeline_parallel": 1, "tensor_parallel": 2, "weights": "fp8"})
    build(spec)
    manifest = Manifest.read(spec.engine_dir("target"))
    assert {"engine/rank0.engine", "engine/rank1.engine"} <= manifest.files.keys()
    assert manifest.tensorrt is not None
    assert (manifest.tensorrt.quantization, manifest.tensorrt.tensor_parallel) == ("FP8", 2)
    stamp = json.loads((spec.engines_dir / "checkpoints" / "target" / "specdec.json").read_text())
    assert "quantize.py" in stamp["command"][1]


def test_a_draft_that_shares_its_targets_embedding(fake: FakeTensorRT) -> None:
    """The converter is given a whole folder, and the target's tokenizer."""
    home = fake.folder.parent
    shutil.rmtree(home / "draft")
    write_model(home / "draft", seed=1, embedding=False, tokenizer=False)
    spec = make_spec(fake)
    build(spec)
    assert Manifest.read(spec.engine_dir("draft")).vocab_size == len(WORDS)
    fake.calls()
    write_model(home / "target", seed=3)
    build(spec)
    assert fake.calls() == EVERYTHING, "the draft is made of its target's embedding too"


def test_the_demo_model(fake: FakeTensorRT) -> None:
    spec = make_spec(fake, target={"model": "demo:smollm2-135m-instruct"})
    build(spec, fake.folder.parent / "target")
    assert Manifest.read(spec.engine_dir("target")).model == "demo:smollm2-135m-instruct"
    with pytest.raises(EngineError, match="demo:other is not known"):
        build(make_spec(fake, target={"model": "demo:other"}))
