"""What building TensorRT engines refuses, and that it does so before anything long is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from fake_tensorrt import FakeTensorRT
from model_folders import WORDS, write_model, write_tokenizer
from tensorrt_builds import EVERYTHING, build, make_spec

from pipeline.engine.manifest import Manifest
from pipeline.errors import EngineError


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.21.0", r"TensorRT-LLM 0\.21\.0 is too old; use 1\.2\.1"),
        ("1.2.0rc8", r"1\.2\.0rc8 is too old"),
        ("1.3.0rc20", r"1\.3\.0rc20 is no 1\.2\.x; use 1\.2\.1"),
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


@pytest.mark.parametrize("version", ["1.2.0", "1.2.1", "1.2.1.post1"])
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


@pytest.mark.parametrize(
    ("gpu", "weights", "message"),
    [
        ("Tesla T4, 7.5", "float16", r"target on Tesla T4: .*need compute capability 8\.0, it is 7\.5"),
        ("NVIDIA A100-SXM4-80GB, 8.0", "fp8", r"target on NVIDIA A100.*: weights: fp8 needs .* 8\.9, it is 8\.0"),
        ("NVIDIA B200, 10.0", "int4", r"weights: int4 is not compiled for compute capability 10\.0"),
    ],
)
def test_weights_that_the_gpu_cannot_have(
    fake: FakeTensorRT, monkeypatch: pytest.MonkeyPatch, gpu: str, weights: str, message: str
) -> None:
    """trtllm-build refuses them, or turns paged context attention off, after the conversion."""
    monkeypatch.setenv("FAKE_GPU", gpu)
    with pytest.raises(EngineError, match=message):
        build(make_spec(fake, target={"weights": weights}))
    assert fake.calls() == []


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
    with pytest.raises(EngineError, match=r"target\.tensor_parallel = 4: does not divide num_attention_heads = 2"):
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
