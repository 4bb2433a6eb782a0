from __future__ import annotations

from pathlib import Path

import pytest

from doctor.support import DRAFT_CONFIG, write_model


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_model(tmp_path / "draft", DRAFT_CONFIG)
