"""perf_analyzer of the server's release on a served loop of scripted models."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.client.prompts import Prompt
from pipeline.errors import ServerError
from pipeline.load.level import Level
from pipeline.load.perf_analyzer import PerfAnalyzer
from pipeline.load.sweep import SweepOptions, sweep
from pipeline.serving.server import TritonServer

from .conftest import stop_and_check
from .support import LOOP, make_spec, scripted_server

pytestmark = pytest.mark.served

SPEC = make_spec(controller={"kind": "fixed", "k": 4})
TOKENS = 12


def test_perf_analyzer_measures_both_modes(tmp_path: Path) -> None:
    """Closed and open loop; tokens, acceptance and calls are those of the loop; a refused request ends the run."""
    server: TritonServer = scripted_server(tmp_path, SPEC, LOOP)
    server.start()
    try:
        server.wait_ready(60)
        server.wait_inference(prompt="a", max_tokens=3, num_draft_tokens=1)
        begun: list[str] = []
        options = SweepOptions(server.grpc_address, 6, TOKENS, 0.0, False, True, tmp_path / "load")
        prompts = [Prompt("text", letter) for letter in "abc"]
        levels = [Level("concurrency", 2), Level("rate", 6)]
        *_, figures = sweep(PerfAnalyzer(60), levels, prompts, options, lambda level, mode, done: begun.append(mode))
        assert begun == ["plain", "speculative", "speculative", "plain"]
        assert [(found.mode, found.requests, found.tokens) for found in figures] == [
            (mode, 6, 6 * TOKENS) for mode in begun
        ]
        for found in figures:
            assert 0 < found.first_token_ms <= found.latency_ms
            if found.mode == "plain":
                assert found.acceptance is None and set(found.calls) == {"target"}
            else:
                assert found.acceptance is not None and 0 < found.acceptance < 1
                assert found.acceptance_length is not None and 1 < found.acceptance_length <= 5
                assert found.calls["draft"] >= 1 and found.calls["target"] >= 2
        bad = SweepOptions(server.grpc_address, 2, 0, 0.0, False, True, tmp_path / "bad")
        with pytest.raises(ServerError, match=r"perf_analyzer failed .*max_tokens"):
            list(sweep(PerfAnalyzer(60), levels[:1], prompts, bad, lambda *_: None))
    finally:
        stop_and_check(server)
