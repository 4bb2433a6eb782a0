"""Engines compiled elsewhere: taken as they are, if they fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorrt_engines
from fake_engine import write_engine
from fake_tensorrt import FakeTensorRT
from model_folders import VOCAB, WORDS, write_model
from rich.console import Console

from pipeline import spec as spec_module
from pipeline.client.serve import running_server
from pipeline.engine.fit import read_engine_manifest
from pipeline.engine.tensorrt_config import TensorRTEngineConfig
from pipeline.errors import EngineError, ServerError
from pipeline.serving.tensorrt_parameters import BACKEND
from pipeline.serving.triton_install import CONTAINER
from pipeline.spec import DeploymentSpec


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(spec_module, "ROOT", tmp_path)
    write_model(tmp_path / "target")
    write_model(tmp_path / "draft", seed=1)
    return tmp_path


def make_spec(home: Path, target: dict[str, Any] | None = None, draft: dict[str, Any] | None = None) -> DeploymentSpec:
    data = {
        "name": "tiny",
        "engine": "tensorrt_llm",
        "target": {"model": str(home / "target"), "engine_dir": str(home / "t"), **(target or {})},
        "draft": {"kind": "model", "model": str(home / "draft"), "engine_dir": str(home / "d"), **(draft or {})},
        "tokens_per_block": 8,
        "limits": {"max_seq_len": 48, "max_draft_len": 4, "max_requests": 4},
        "tensorrt_llm": {"examples_dir": str(home / "installation" / "examples"), "max_num_tokens": 256},
    }
    return DeploymentSpec.model_validate(data)


def build(spec: DeploymentSpec) -> list[str]:
    lines: list[str] = []
    tensorrt_engines.build_engines(spec, Path, lines.append, lambda line: None)
    return lines


def test_both_from_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither TensorRT-LLM nor a GPU is asked for; manifests are read from config.json."""
    monkeypatch.setenv("PATH", "/nonexistent")
    engines = write_engine(home / "t", "target", ranks=2), write_engine(home / "d", "draft")
    spec = make_spec(home, target={"tensor_parallel": 2})
    assert sum("accepted" in line for line in build(spec)) == 2
    for role, engine in zip(spec.model_roles, engines, strict=True):
        manifest = read_engine_manifest(spec, role)
        manifest.verify_files(spec.engine_dir(role))
        assert manifest.engine_path(spec.engine_dir(role)) == engine
        assert manifest.vocab_size == len(WORDS) and manifest.tensorrt is not None
        assert (manifest.tensorrt.tensorrt, manifest.tensorrt.build_arguments) == ("unknown", ())
    # 39 tokens on two ranks: the logits are padded to an even number.
    target = read_engine_manifest(spec, "target")
    assert (target.engine_vocab_size, target.padded_vocab_size) == (VOCAB - 1, VOCAB)
    assert read_engine_manifest(spec, "draft").padded_vocab_size == VOCAB - 1
    (home / "t" / "rank1.engine").write_bytes(b"other!")
    with pytest.raises(EngineError, match=r"rank1\.engine is damaged"):
        read_engine_manifest(spec, "target").verify_files(spec.engine_dir("target"))


@pytest.mark.skipif((CONTAINER / "backends" / BACKEND).is_dir(), reason="NVIDIA's backend is installed here")
def test_serving_them_without_the_backend(home: Path) -> None:
    """The engines are found and fit; what is missing is NVIDIA's backend, and nothing is started to find out."""
    spec = make_spec(home)
    with pytest.raises(EngineError, match="run `make engines` first"), running_server(spec, Console(quiet=True)):
        pass
    write_engine(home / "t", "target")
    write_engine(home / "d", "draft")
    build(spec)
    with pytest.raises(ServerError, match="has no backend tensorrtllm"), running_server(spec, Console(quiet=True)):
        pass
    with pytest.raises(EngineError, match=r"target.tensor_parallel is 2, was 1"):
        read_engine_manifest(make_spec(home, target={"tensor_parallel": 2}), "target")


def test_one_from_elsewhere_one_built(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTensorRT(home / "installation", monkeypatch)
    write_engine(home / "t", "target")
    spec = make_spec(home, draft={"engine_dir": None})
    build(spec)
    assert fake.calls() == ["convert draft", "build draft"]
    assert read_engine_manifest(spec, "draft").engine_path(spec.engine_dir("draft")).is_relative_to(home / "engines")


@pytest.mark.parametrize(
    ("role", "changes", "message"),
    [
        ("target", {"version": "0.21.0"}, r"compiled by TensorRT-LLM 0\.21\.0, this release serves 1\.2\.x"),
        ("target", {"dtype": "bfloat16"}, "dtype is bfloat16, the spec has float16"),
        ("target", {"logits_dtype": "float16"}, "logits_dtype is float16, laws cross"),
        ("target", {"tokens_per_block": 64}, "tokens_per_block = 8, the engine has 64"),
        ("target", {"max_batch_size": 3}, r"limits\.max_requests = 4, the engine's max_batch_size is 3"),
        ("target", {"max_seq_len": 51}, r"limits\.max_draft_len = 52, the engine holds 51 tokens, drafts"),
        ("target", {"max_draft_len": 3}, r"limits\.max_draft_len = 4, the engine's max_draft_len is 3"),
        ("target", {"speculative_decoding_mode": 1}, "speculative_decoding_mode is not draft_tokens_external"),
        ("target", {"max_beam_width": 2}, "max_beam_width is 2, drafts need 1"),
        ("target", {"kv_cache_type": "CONTINUOUS"}, "its KV cache is not paged"),
        ("target", {"ranks": 2}, r"target\.tensor_parallel = 1, the engine has 2"),
        ("draft", {"use_paged_context_fmha": False}, "use_paged_context_fmha is off"),
        ("draft", {"gather_generation_logits": False}, r"draft\.sampling = q needs gather_generation_logits"),
    ],
)
def test_one_that_does_not_fit(home: Path, role: str, changes: dict[str, Any], message: str) -> None:
    """Refused before anything else, with every reason."""
    for name, folder in (("target", "t"), ("draft", "d")):
        write_engine(home / folder, name, **(changes if name == role else {}))
    with pytest.raises(EngineError, match=f"{role} engine .* does not fit the spec: .*{message}"):
        build(make_spec(home))
    assert not (home / "engines").exists()


def test_several_reasons_in_one_message(home: Path) -> None:
    write_engine(home / "t", "target", max_batch_size=1, max_draft_len=1, max_seq_len=10)
    config = TensorRTEngineConfig.read(home / "t")
    assert len(list(config.misfits(make_spec(home), "target"))) == 3


def test_a_greedy_draft_needs_no_logits(home: Path) -> None:
    write_engine(home / "t", "target")
    write_engine(home / "d", "draft", gather_generation_logits=False)
    build(make_spec(home, draft={"sampling": "greedy"}))


def test_what_is_no_engine(home: Path) -> None:
    folder = home / "t"
    write_engine(home / "d", "draft")
    with pytest.raises(EngineError, match=r"config\.json cannot be read \(No such file"):
        build(make_spec(home))
    write_engine(folder, "target", ranks=2)
    (folder / "rank1.engine").unlink()
    with pytest.raises(EngineError, match=r"rank1\.engine is missing"):
        build(make_spec(home))
    (folder / "config.json").write_text("{")
    with pytest.raises(EngineError, match=r"config\.json is not valid JSON"):
        build(make_spec(home))
    for text in ("[]", "{}", '{"version": 1, "pretrained_config": {}, "build_config": {"plugin_config": {}}}'):
        (folder / "config.json").write_text(text)
        with pytest.raises(EngineError, match="is not the configuration of a TensorRT-LLM engine"):
            build(make_spec(home))
