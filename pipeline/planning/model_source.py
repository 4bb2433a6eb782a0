"""Where a spec's model is: a folder, the demo model, or a hub id; found without downloading anything."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import try_to_load_from_cache

from pipeline.errors import EngineError
from pipeline.planning.model_shape import ModelShape
from pipeline.spec import ROOT

DEMO_PREFIX = "demo:"
DEMO_HUB_IDS = {"smollm2-135m-instruct": "HuggingFaceTB/SmolLM2-135M-Instruct"}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ModelSource:
    """One model as a spec names it.

    Attributes:
        folder: its files on this machine; None where they have not been brought yet.
    """

    name: str
    kind: Literal["folder", "demo", "hub"]
    folder: Path | None

    @classmethod
    def find(cls, name: str) -> ModelSource:
        """Look for a model.

        Raises:
            EngineError: a folder that does not exist, or a demo model that is not known.
        """
        if name.startswith(DEMO_PREFIX):
            short = name.removeprefix(DEMO_PREFIX)
            if short not in DEMO_HUB_IDS:
                known = ", ".join(DEMO_PREFIX + known for known in DEMO_HUB_IDS)
                raise EngineError(f"{name} is not known; known: {known}")
            folder = ROOT / ".cache" / "models" / short
            return cls(name, "demo", folder if (folder / "config.json").is_file() else None)
        folder = Path(name).expanduser()
        folder = folder if folder.is_absolute() else ROOT / folder
        if folder.is_dir():
            return cls(name, "folder", folder)
        if _HUB_ID.fullmatch(name):
            found = try_to_load_from_cache(name, "config.json")
            return cls(name, "hub", Path(found).parent if isinstance(found, str) else None)
        raise EngineError(f"model folder {folder} does not exist")

    def shape(self) -> ModelShape:
        """From its own config.json, else from the shapes that ship with the profiles.

        Raises:
            EngineError: neither is there, or the architecture is not supported.
        """
        if self.folder is not None:
            return ModelShape.read(self.folder)
        if self.kind == "demo":
            return ModelShape.known(DEMO_HUB_IDS[self.name.removeprefix(DEMO_PREFIX)])
        return ModelShape.known(self.name)
