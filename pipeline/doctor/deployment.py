"""What the checks look at: a spec, its models as far as they are here, and the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.doctor.machine import Machine
from pipeline.errors import EngineError
from pipeline.planning.gpus import Gpu
from pipeline.planning.model_shape import ModelShape
from pipeline.planning.model_source import ModelSource
from pipeline.spec import DeploymentSpec, Role


@dataclass(frozen=True)
class Model:
    """One model of the spec.

    Attributes:
        folder: its files; None where they are not on this machine (yet).
        shape: None where it cannot be known; `problem` says why.
    """

    role: Role
    name: str
    folder: Path | None
    shape: ModelShape | None
    problem: str | None
    brought_by: str  # what would put its files on this machine

    def file(self, name: str) -> Path | None:
        """A file of the folder, None if it is not there."""
        path = None if self.folder is None else self.folder / name
        return path if path is not None and path.is_file() else None


@dataclass(frozen=True)
class Deployment:
    """A spec where it is to run.

    Attributes:
        named_gpu: the kind of GPU that the user asks about, where it is not this machine's.
    """

    spec: DeploymentSpec
    models: dict[Role, Model]
    machine: Machine
    named_gpu: Gpu | None = None

    @classmethod
    def read(cls, spec: DeploymentSpec, machine: Machine, named_gpu: Gpu | None = None) -> Deployment:
        """Look for the models; nothing is downloaded, and what is missing becomes a finding."""
        models = {role: _model(role, spec.step_model(role).model or "") for role in spec.model_roles}
        return cls(spec, models, machine, named_gpu)

    @property
    def shapes_known(self) -> bool:
        return all(model.shape is not None for model in self.models.values())

    def shapes(self) -> Iterator[tuple[Role, ModelShape]]:
        """The shapes that are known."""
        for role, model in self.models.items():
            if model.shape is not None:
                yield role, model.shape


def _model(role: Role, name: str) -> Model:
    try:
        source = ModelSource.find(name)
    except EngineError as error:
        return Model(role, name, None, None, str(error), "naming a folder that exists")
    by_hand = f"`hf download {name} --exclude 'original/*'`"  # Llama's weights a second time
    ways = {"hub": by_hand, "demo": "`make engines`", "folder": "completing the folder"}
    brought_by = ways[source.kind]
    try:
        return Model(role, name, source.folder, source.shape(), None, brought_by)
    except EngineError as error:
        return Model(role, name, source.folder, None, str(error), brought_by)
