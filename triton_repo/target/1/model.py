"""The target step model; its logic is `pipeline.serving.step_server`."""

from __future__ import annotations

import os
import sys
from typing import Any

# The stub embeds an isolated Python, which does not read PYTHONPATH.
sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]

from pipeline.serving.step_server import StepServer  # noqa: E402


class TritonPythonModel:
    """The class that Triton's Python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        self._server = StepServer.from_triton(args)

    def execute(self, requests: list[Any]) -> None:
        self._server.execute(requests)

    def finalize(self) -> None:
        self._server.close()
