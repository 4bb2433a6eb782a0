"""Nothing that is loaded can run code: no pickle in the package, and checkpoints of pickles are refused by name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pipeline
from pipeline.engine.weights import CheckpointReader
from pipeline.errors import EngineError

PACKAGE = Path(pipeline.__file__).parent
RUNS_CODE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
LOADERS = {("torch", "load"), ("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load")}


def offences(source: str) -> list[str]:
    """What in a program reads objects that may run code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in RUNS_CODE]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = {(module, alias.name) for alias in node.names}
            found += [module] if module.split(".")[0] in RUNS_CODE or names & LOADERS else []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in LOADERS:
                found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
            refused = isinstance(node.value, ast.Constant) and node.value.value is False
            found += [] if refused else [node.arg]
    return found


def test_the_package_unpickles_nothing() -> None:
    files = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "build").glob("*.py")]
    assert len(files) > 100
    assert {str(path): found for path in files if (found := offences(path.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "numpy.load('x', allow_pickle=True)",
        "import yaml\nyaml.load(text, Loader)",
        "AutoModel.from_pretrained(folder, trust_remote_code=True)",
    ],
)
def test_it_would_be_found(source: str) -> None:
    assert offences(source)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt", "model.ckpt"])
def test_a_pickled_checkpoint_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04")
    with pytest.raises(EngineError, match=rf"model\.safetensors is missing; {name} is a pickle"):
        CheckpointReader(tmp_path)


def test_a_pickle_with_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.")
    with pytest.raises(EngineError, match="damaged or truncated"):
        CheckpointReader(tmp_path)
