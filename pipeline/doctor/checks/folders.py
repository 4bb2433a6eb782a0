"""Whether the models are here, whole, and of a kind that can be served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment, Model
from pipeline.doctor.finding import Finding
from pipeline.engine.model_config import ARCHITECTURES

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_LENGTH_BYTES = 8


class ModelFolders(Check):
    """config.json, weights and tokenizer of each model."""

    name = "model folders"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        for role, model in deployment.models.items():
            if model.problem is not None:
                yield self.error(
                    f"{role}.model: {model.problem}", "nothing can be built from it", "correct the name or the folder"
                )
            elif model.folder is None:
                yield self.not_checked(
                    f"{role}.model {model.name} is not on this machine",
                    "its weights and tokenizer cannot be looked at",
                    f"{model.brought_by}, then run doctor again",
                )
            else:
                yield self._files(deployment, model, model.folder)

    def _files(self, deployment: Deployment, model: Model, folder: Path) -> Finding:
        missing = missing_files(folder, needs_tokenizer=model.role == "target")
        if not missing:
            return self.ok(f"{model.role}: {folder} is complete")
        what = f"{model.role}: {folder} lacks {', '.join(missing)}"
        return self.error(what, "the build would stop there", f"complete it: {model.brought_by}")


class Architectures(Check):
    """Whether engines of a model's architecture can be built: the same families for both kinds."""

    name = "architecture"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        for role, shape in deployment.shapes():
            if deployment.spec.step_model(role).engine_dir is not None:
                yield self.ok(f"{role}: {shape.architecture}, compiled elsewhere")
            elif shape.architecture not in ARCHITECTURES:
                yield self.error(
                    f"{role}: {shape.architecture} is not among {', '.join(sorted(ARCHITECTURES))}",
                    "`make engines` has no conversion for it (it can be planned)",
                    "take a model of those families, or compile the engine elsewhere and name it: engine_dir",
                )
            elif shape.quantization is not None:
                yield self.error(
                    f"{role}: its weights were published as {shape.quantization}",
                    "engines are made from 16-bit weights; `weights:` quantises them when they are built",
                    "name the 16-bit model",
                )
            else:
                yield self.ok(f"{role}: {shape.architecture}")


def missing_files(folder: Path, needs_tokenizer: bool) -> list[str]:
    """Files that are absent or cut short, with what is wrong with them."""
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if needs_tokenizer and not (folder / "tokenizer.json").is_file():
        missing.append("tokenizer.json")
    names = [SINGLE]
    if (folder / INDEX).is_file():
        try:
            names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return [*missing, f"a readable {INDEX}"]
    for name in names:
        path = folder / name
        if not path.is_file():
            missing.append(name)
        elif (end := _promised_bytes(path)) is None or end > path.stat().st_size:
            missing.append(f"the end of {name} ({path.stat().st_size} of {end or 'unknown'} bytes)")
    return missing


def _promised_bytes(path: Path) -> int | None:
    """File size according to a safetensors header: its length, then JSON with the offsets of every tensor."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            header = json.loads(stream.read(length))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, IndexError, MemoryError, OverflowError):
        return None
    return _LENGTH_BYTES + length + max(ends, default=0)
