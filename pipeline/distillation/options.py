"""What `specdec distill` is asked for, checked before anything is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pipeline.client.prompts import BUILT_IN
from pipeline.distillation.corpus import POSITIONS
from pipeline.errors import InvalidRequestError


@dataclass(frozen=True)
class DistillOptions:
    """What the command was asked for; its `--help` says what each means."""

    target: Path
    out: Path
    layers: int = 4
    init: Path | None = None
    minutes: float = 60.0
    tokens: int = 5_000_000
    prompts: Path | None = None
    exclude: Path = BUILT_IN
    corpus: Path | None = None
    device: str = "auto"
    slots: int = 96
    workers: int | None = None
    head_tokens: int = 8192
    batch_tokens: int = 4096
    steps: int | None = None
    rate: float = 1e-3
    seed: int = 0

    def check(self) -> None:
        """Refuse what cannot work before anything is computed.

        Raises:
            InvalidRequestError: naming the option, its value and the limit.
        """
        limits = (
            ("layers", self.layers, 1, math.inf),
            ("minutes", self.minutes, 0.01, 100_000),
            ("tokens", self.tokens, 1000, 10**10),
            ("slots", self.slots, 1, 4096),
            ("workers", self.workers or 1, 1, 256),
            ("head-tokens", self.head_tokens, 64, math.inf),
            ("batch-tokens", self.batch_tokens, POSITIONS, 10**7),
            ("steps", self.steps or 1, 1, 10**9),
            ("rate", self.rate, 1e-7, 1.0),
            ("seed", self.seed, 0, 2**31),
        )
        for name, value, low, high in limits:
            if not low <= value <= high:
                raise InvalidRequestError(name, value, f"must be between {low:g} and {high:g}")
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise InvalidRequestError("out", str(self.out), "exists and is not empty; name another folder")
        for name, folder in (("target", self.target), ("init", self.init)):
            if folder is not None and not (folder / "config.json").is_file():
                raise InvalidRequestError(name, str(folder), "must be a Hugging Face folder with a config.json")
