"""A tiny deployment over a TensorRT-LLM of stand-ins, and a build of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorrt_engines
from fake_tensorrt import FakeTensorRT

from pipeline.spec import DeploymentSpec

EVERYTHING = ["convert target", "build target", "convert draft", "build draft"]


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
