"""TensorRT engines, from spec to manifest, with programs that write what the real ones write."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorrt_engines
from fake_tensorrt import FakeTensorRT
from model_folders import VOCAB, WORDS, write_model, write_tokenizer

from pipeline import spec as spec_module
from pipeline.engine.fit import read_engine_manifest
from pipeline.engine.manifest import Manifest
from pipeline.engine.tensorrt_capabilities import TENSORRT_LLM_CAPABILITIES
from pipeline.errors import EngineError
from pipeline.serving.dialect import Dialect
from pipeline.spec import DeploymentSpec

EVERYTHING = ["convert target", "build target", "convert draft", "build draft"]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTensorRT:
    """The installation, two model folders, and engines/ in a folder of the test."""
    monkeypatch.setattr(spec_module, "ROOT", tmp_path)
    write_model(tmp_path / "target")
    write_model(tmp_path / "draft", seed=1)
    return FakeTensorRT(tmp_path / "installation", monkeypatch)


def make_spec(fake: FakeTensorRT, **changes: Any) -> DeploymentSpec:
    home = fake.folder.parent
    data: dict[str, Any] = {
        "name": "tiny",
        "engine": "tensorrt_llm",
        "target": {"model": str(home / "target")},
        "draft": {"kind": "model", "model": str(home / "draft")},
        "tensorrt_llm": {"examples_dir": str(fake.examples), "max_num_tokens": 256},
        "tokens_per_block": 8,
        "limits": {"max_seq_len": 48, "max_draft_len": 4, "max_requests": 4},
    }
    for key, value in changes.items():
        data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
    return DeploymentSpec.model_validate(data)


def build(spec: DeploymentSpec, demo: Path | None = None) -> list[str]:
    """What was reported."""
    lines: list[str] = []

    def fetch_demo(name: str) -> Path:
        assert demo is not None, name
        return demo

    tensorrt_engines.build_engines(spec, fetch_demo, lines.append, lambda line: None)
    return lines


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


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.21.0", r"TensorRT-LLM 0\.21\.0 is too old; use 1\.2\.1"),
        ("1.2.0rc8", r"1\.2\.0rc8 is too old"),
        ("1.3.0rc21", r"1\.3\.0rc21 compiles no engines any more .* use 1\.2\.1"),
        ("1.4.0rc1", "compiles no engines any more"),
        ("weird", "version 'weird' is not understood"),
        ("none", "has no tensorrt_llm package"),
    ],
)
def test_the_installed_version(fake: FakeTensorRT, version: str, message: str) -> None:
    """Refused before anything is run, with what to do."""
    fake.install(version)
    with pytest.raises(EngineError, match=message):
        build(make_spec(fake))
    assert fake.calls() == []


@pytest.mark.parametrize("version", ["1.2.0", "1.2.1", "1.3.0rc20"])
def test_versions_that_compile(version: str) -> None:
    from tensorrt_install import check_version

    check_version(version, "image")


def test_nothing_installed(fake: FakeTensorRT, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_NO_GPU", "1")
        with pytest.raises(EngineError, match="no GPU found"):
            build(make_spec(fake))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(EngineError, match=r"trtllm-build is not on PATH: .*TensorRT-LLM 1\.2\.1.*DRY_RUN=1"):
        build(make_spec(fake))


def test_flags_are_asked_for_first(fake: FakeTensorRT, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that lacks a flag, or a choice, is found out before the first conversion."""
    with monkeypatch.context() as patch:
        patch.setenv("FAKE_WITHOUT", "use_paged_context_fmha")
        with pytest.raises(EngineError, match=r"does not know .*--use_paged_context_fmha"):
            build(make_spec(fake))
    script = fake.examples / "models" / "core" / "llama" / "convert_checkpoint.py"
    text = script.read_text()
    script.write_text(text.replace('"int8", "int4", "int4_gptq"', '"int8"'))
    with pytest.raises(EngineError, match=r"--weight_only_precision int4: .* allows int8"):
        build(make_spec(fake, target={"weights": "int4"}))
    script.write_text("import nothing_of_this_name")
    with pytest.raises(EngineError, match=r"--help failed \(status 1\): .*nothing_of_this_name"):
        build(make_spec(fake))
    script.unlink()
    with pytest.raises(EngineError, match=r"tensorrt_llm.examples_dir = .*convert_checkpoint.py does not exist"):
        build(make_spec(fake))
    assert fake.calls() == []


def test_help_is_asked_for_once(fake: FakeTensorRT, monkeypatch: pytest.MonkeyPatch) -> None:
    """trtllm-build takes tens of seconds to say which flags it knows."""
    import tensorrt_install

    asked: list[str] = []
    original = tensorrt_install.subprocess.run

    def watched(command: list[str], **options: Any) -> Any:
        if command[-1] == "--help":
            asked.append(Path(command[-2]).name)
        return original(command, **options)

    monkeypatch.setattr(tensorrt_install.subprocess, "run", watched)
    build(make_spec(fake))
    assert sorted(asked) == ["convert_checkpoint.py", "trtllm-build"]
    build(make_spec(fake))
    assert len(asked) == 2, "nothing to build, nothing to ask"


def test_the_hub(fake: FakeTensorRT, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id is fetched, weights and texts; what the hub says is one line, with the way round."""
    import huggingface_hub

    home, asked = fake.folder.parent, list[tuple[str, list[str]]]()

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(home / "target")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    build(make_spec(fake, target={"model": "someone/some-model"}))
    assert asked == [("someone/some-model", ["*.json", "*.jinja", "model*.safetensors"])]
    assert fake.calls() == EVERYTHING

    def refuse(name: str, allow_patterns: list[str]) -> str:
        raise OSError("401:\n gated repository")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(
        EngineError, match=r"cannot be fetched \(OSError: 401: gated repository\); .*hf download"
    ) as caught:
        build(make_spec(fake, target={"model": "someone/some-model"}))
    assert "\n" not in str(caught.value)


def test_bad_models_are_refused_first(fake: FakeTensorRT) -> None:
    home = fake.folder.parent
    with pytest.raises(EngineError, match="nowhere does not exist"):
        build(make_spec(fake, target={"model": str(home / "nowhere")}))
    with pytest.raises(EngineError, match="tensor_parallel = 4 does not divide the model's 2 attention heads"):
        build(make_spec(fake, target={"tensor_parallel": 4}))
    with pytest.raises(EngineError, match="pipeline_parallel = 2: the model has 1 layers"):
        build(make_spec(fake, target={"pipeline_parallel": 2}))
    with pytest.raises(EngineError, match=r"limits\.max_seq_len = 65: the target's context is 64"):
        build(make_spec(fake, limits={"max_seq_len": 65}))
    write_model(home / "draft", seed=1, architectures=["GemmaForCausalLM"])
    with pytest.raises(EngineError, match="architecture GemmaForCausalLM is not supported; supported: Llama"):
        build(make_spec(fake))
    write_model(home / "draft", seed=1, quantization_config={"quant_method": "awq"})
    with pytest.raises(EngineError, match=r"quantised already \(awq\)"):
        build(make_spec(fake))
    write_model(home / "draft", seed=1)
    write_tokenizer(home / "draft", [*WORDS[:-1], "other"])
    with pytest.raises(EngineError, match="tokenizer"):
        build(make_spec(fake))
    write_tokenizer(home / "draft", WORDS)
    os.truncate(home / "target" / "model.safetensors", 1000)
    with pytest.raises(EngineError, match="damaged or truncated"):
        build(make_spec(fake))
    assert fake.calls() == []


def test_a_converter_that_writes_nothing(fake: FakeTensorRT) -> None:
    script = fake.examples / "models" / "core" / "llama" / "convert_checkpoint.py"
    script.write_text(script.read_text().replace("rank{rank}.safetensors", "other{rank}.safetensors"))
    with pytest.raises(EngineError, match=r"ended well but wrote no rank0\.safetensors"):
        build(make_spec(fake))


def test_a_draft_with_a_shorter_context(fake: FakeTensorRT) -> None:
    write_model(fake.folder.parent / "draft", seed=1, max_position_embeddings=20)
    spec = make_spec(fake)
    build(spec)
    assert Manifest.read(spec.engine_dir("draft")).limits.max_seq_len == 20
