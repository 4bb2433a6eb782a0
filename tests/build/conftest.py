"""build/ holds scripts, not a package: they import one another from their own folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "build"))

from fake_tensorrt import FakeTensorRT
from model_folders import write_model

from pipeline import spec as spec_module


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTensorRT:
    """The installation, two model folders, and engines/ in a folder of the test."""
    monkeypatch.setattr(spec_module, "ROOT", tmp_path)
    write_model(tmp_path / "target")
    write_model(tmp_path / "draft", seed=1)
    return FakeTensorRT(tmp_path / "installation", monkeypatch)
