"""The speculative-decoding orchestrator; its logic is `pipeline.serving.orchestrator_server`."""

from __future__ import annotations

import os
import sys
from typing import Any

# The stub embeds an isolated Python, which does not read PYTHONPATH.
sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]

from pipeline.serving.orchestrator_server import OrchestratorServer  # noqa: E402


class TritonPythonModel:
    """The class that Triton's Python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        self._server = OrchestratorServer.from_triton(args)

    def execute(self, requests: list[Any]) -> None:
        self._server.execute(requests)

    def finalize(self) -> None:
        self._server.close()
