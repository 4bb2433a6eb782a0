"""`specdec load` and `specdec soak` from outside: what they refuse before anything is started."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from pipeline.client.cli import app


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("load", "--concurrency", "0"), "concurrency = '0': must be whole numbers from 1 to 1024 between commas"),
        (("load", "--rates", "x"), "rates = 'x'"),
        (("load", "--rates", "20", "--requests", "12"), "requests = 12: must be at least 20"),
        (("load", "--concurrency", "1,16"), "requests = 12: must be at least 16"),
        (("load", "--tool", "ab"), "tool = 'ab': must be one of perf_analyzer, genai-perf"),
        (("load", "--prompts", "nowhere.jsonl"), "prompts nowhere.jsonl cannot be read"),
        (("soak", "--url", "127.0.0.1:1"), "url = '127.0.0.1:1': url and http-url must be given together"),
    ],
)
def test_load_and_soak_refuse_nonsense(arguments: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 1 and f"error: {words}" in done.stderr, done.output
