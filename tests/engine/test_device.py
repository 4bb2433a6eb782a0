"""Which device an engine runs on: what is refused, in words that name what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import LIMITS, TinyModel, make_decoder

from pipeline.engine import device as devices
from pipeline.engine.device import (
    WORKING_BYTES,
    check_memory,
    pool_bytes,
    require_device_memory,
    resolve_device,
    torch_device,
    weight_bytes,
    weights_of,
)
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.weights import load_weights
from pipeline.errors import EngineError, SpecError
from pipeline.spec import DeploymentSpec

MINIMAL: dict[str, Any] = {"name": "t", "target": {"model": "m"}, "draft": {"kind": "none"}}


def machine(monkeypatch: pytest.MonkeyPatch, cuda: str | None, gpu: bool, capability: tuple[int, int] = (9, 0)) -> None:
    """A torch of another build, on another machine."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "A Test GPU")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def test_auto_takes_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "13.0", True)
    assert [resolve_device(wanted) for wanted in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    assert torch_device("cuda") == torch.device("cuda:0") and torch_device("cpu") == torch.device("cpu")
    assert devices.describe(torch.device("cuda:0")) == "cuda: A Test GPU, compute capability 9.0"
    machine(monkeypatch, "13.0", True, (6, 1))
    assert resolve_device("auto") == "cpu"  # too old
    machine(monkeypatch, "13.0", False)
    assert resolve_device("auto") == "cpu"


@pytest.mark.parametrize(
    ("cuda", "gpu", "capability", "message"),
    [
        (
            None,
            False,
            (9, 0),
            r"device: cuda: torch 2\.13\.0\S* was built without CUDA; install the CUDA build of torch",
        ),
        ("13.0", False, (9, 0), r"device: cuda: torch \S+ finds no GPU .*CUDA_VISIBLE_DEVICES"),
        (
            "13.0",
            True,
            (6, 1),
            r"device: cuda: A Test GPU has compute capability 6\.1; FP16 engines need 7\.0 or newer",
        ),
    ],
)
def test_a_device_that_cannot_be_had(
    cuda: str | None, gpu: bool, capability: tuple[int, int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, cuda, gpu, capability)
    for ask in (lambda: resolve_device("cuda"), lambda: torch_device("cuda")):
        with pytest.raises(EngineError, match=message):
            ask()


def test_memory_is_counted(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine takes is what the check says, to the byte; too little is refused with every number."""
    decoder = make_decoder(tiny.folder, kind="paged", blocks=LIMITS.kv_blocks)
    config = ModelConfig.read(tiny.folder)
    assert pool_bytes(config, LIMITS, torch.float32) == 2 * decoder.keys.nbytes  # type: ignore[attr-defined]
    weights = load_weights(tiny.folder / "engine-float32-None")
    assert weight_bytes(weights, torch.float32) == sum(t.nbytes for t in weights.values())
    matrices = {name: t for name, t in weights.items() if t.dim() > 1}
    assert weights_of(config, torch.float16) == weight_bytes(matrices, torch.float16)
    reduced = make_decoder(tiny.folder, head_ids=[1, 2, 3], kind="paged")
    assert reduced.head_ids is not None and weights_of(config, torch.float16, 3) == sum(
        t.numel() * 2 for t in load_weights(tiny.folder / "engine-float32-[1, 2, 3]").values() if t.dim() > 1
    )
    machine(monkeypatch, "13.0", True)
    needed = weight_bytes(weights, torch.float16) + pool_bytes(config, LIMITS, torch.float16) + WORKING_BYTES
    for free, fits in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None, free=free: (free, 80 << 30))
        if fits:
            require_device_memory(torch.device("cuda:0"), config, weights, torch.float16, LIMITS)
        else:
            with pytest.raises(EngineError, match=r"A Test GPU.*: weights 0\.0 \+ KV pool 0\.0 \+ working memory 1\.1"):
                require_device_memory(torch.device("cuda:0"), config, weights, torch.float16, LIMITS)


def test_the_refusal_names_every_number() -> None:
    with pytest.raises(EngineError) as caught:
        check_memory({"target weights": 16 * 10**9, "target KV pool": 4 * 10**9}, 12 * 10**9, 24 * 10**9, "GPU 0")
    assert str(caught.value) == (
        "GPU 0: target weights 16.0 + target KV pool 4.0 + working memory 1.1 = 21.1 GB, but 12.0 of 24.0 GB are free; "
        "lower kv_blocks, or take a smaller model"
    )


def test_the_spec_names_a_device(tmp_path: Path) -> None:
    """auto by default; it is the embedded engine's alone."""
    assert DeploymentSpec.check(MINIMAL).device == "auto"
    assert DeploymentSpec.check({**MINIMAL, "device": "cuda"}).device == "cuda"
    with pytest.raises(SpecError, match=r"device: Input should be 'auto', 'cpu' or 'cuda' \(got 'gpu'\)"):
        DeploymentSpec.check({**MINIMAL, "device": "gpu"})
    with pytest.raises(SpecError, match="device = 'cuda' is for engine: embedded"):
        DeploymentSpec.check({**MINIMAL, "engine": "tensorrt_llm", "device": "cuda"})
