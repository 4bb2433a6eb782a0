"""build_engines for a GPU, which is a stand-in: what manifests say, when it builds again, what it refuses."""

from __future__ import annotations

from pathlib import Path

import embedded
import pytest
import torch
from model_folders import make_spec, write_model

import pipeline.spec
from pipeline.engine import device as devices
from pipeline.engine import embedded as engine
from pipeline.engine.fit import read_engine_manifest
from pipeline.engine.manifest import Manifest
from pipeline.engine.paged.decoder import PagedDecoder
from pipeline.engine.step import StepRequest
from pipeline.errors import EngineError

NAME = "cuda: A Test GPU, compute capability 9.0"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pipeline.spec, "ROOT", tmp_path)
    monkeypatch.setattr(embedded, "COST_REPEATS", 1)
    return tmp_path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A GPU that computes on the CPU, with the decoder of a GPU; its memory in bytes."""
    memory = {"free": 80 << 30, "total": 80 << 30}

    def decoder(config, weights, dtype, limits, threads, device):  # type: ignore[no-untyped-def]
        made = PagedDecoder(config, weights, dtype, limits, torch.device("cpu"))
        made.prepare()
        return made

    monkeypatch.setattr(embedded, "resolve_device", lambda wanted: "cpu" if wanted == "cpu" else "cuda")
    monkeypatch.setattr(embedded, "make_decoder", decoder)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (memory["free"], memory["total"]))
    for module in (embedded, engine):
        monkeypatch.setattr(module, "torch_device", lambda kind: torch.device("cuda:0" if kind == "cuda" else "cpu"))
    monkeypatch.setattr(embedded, "describe", lambda device: NAME if device.type == "cuda" else "cpu")
    return memory


def build(tmp_path: Path, device: str) -> list[str]:
    lines: list[str] = []
    target, draft = write_model(tmp_path / "target"), write_model(tmp_path / "draft", seed=1)
    embedded.build_engines(make_spec(device=device), target, draft, lines.append)
    return lines


def test_the_manifest_names_the_device(tmp_path: Path, gpu: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it runs, on what its costs were measured, and that its bits depend on the batch; it loads as that."""
    build(tmp_path, "cuda")
    for role in ("target", "draft"):
        manifest = Manifest.read(make_spec().engine_dir(role))  # type: ignore[arg-type]
        assert (manifest.device, manifest.cost.measured_on, manifest.capabilities.deterministic) == (
            "cuda",
            NAME,
            False,
        )
    monkeypatch.setattr(engine, "make_decoder", embedded.make_decoder)
    model = engine.load_step_model(make_spec().engine_dir("target"))
    found = model.submit(StepRequest("a", (1, 5, 6), 4)).result(20).output_ids
    model.close()
    build(tmp_path, "cpu")
    monkeypatch.undo()
    on_cpu = engine.load_step_model(tmp_path / "engines" / "tiny" / "target", threads=1)
    assert on_cpu.submit(StepRequest("a", (1, 5, 6), 4)).result(20).output_ids == found
    on_cpu.close()


def test_another_device_builds_again(tmp_path: Path, gpu: dict[str, int]) -> None:
    """Costs are a device's own; the same one changes nothing."""
    assert "target: up to date" not in build(tmp_path, "cuda")
    assert {"target: up to date", "draft: up to date"} <= set(build(tmp_path, "auto"))
    assert "target: up to date" not in build(tmp_path, "cpu")
    assert Manifest.read(make_spec().engine_dir("target")).cost.measured_on == "cpu"
    assert "target: up to date" in build(tmp_path, "cpu")


def test_an_engine_of_another_device(tmp_path: Path, gpu: dict[str, int]) -> None:
    """A spec that names one refuses the other's engine; auto takes what was built."""
    build(tmp_path, "cuda")
    with pytest.raises(EngineError, match=r"built from another spec .*device is 'cpu', was 'cuda'"):
        read_engine_manifest(make_spec(device="cpu"), "target")
    assert read_engine_manifest(make_spec(), "target").device == "cuda"


def test_both_models_must_fit_before_anything_is_built(tmp_path: Path, gpu: dict[str, int]) -> None:
    """Weights and pools of both, each with its number."""
    gpu["free"] = devices.WORKING_BYTES
    with pytest.raises(
        EngineError, match=r"target weights 0\.0 \+ target KV pool 0\.0 \+ draft weights .* 1\.1 of 85\.9"
    ):
        build(tmp_path, "cuda")
    assert not make_spec().engines_dir.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu(tmp_path: Path, gpu: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is built for a device that is not here, and an engine from elsewhere does not load."""
    build(tmp_path, "cuda")
    folder = make_spec().engine_dir("target")
    monkeypatch.undo()
    with pytest.raises(EngineError, match=r"device: cuda: torch .* (was built without CUDA|finds no GPU)"):
        engine.load_step_model(folder)
    target = write_model(tmp_path / "other")
    with pytest.raises(EngineError, match="device: cuda: torch"):
        embedded.build_engines(make_spec(device="cuda"), target, None, print)
