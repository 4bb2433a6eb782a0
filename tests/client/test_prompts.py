"""Prompt files of the user: what is read, and what is refused before any work is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.client.cli import app
from pipeline.client.prompts import BUILT_IN, Prompt, load_prompts
from pipeline.errors import SpecError


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def unbuilt(folder: Path) -> Path:
    """A spec whose engines do not exist: whatever loads or serves them complains."""
    spec = folder / "unbuilt.yaml"
    spec.write_text("name: never-built\ntarget: {model: nowhere}\ndraft: {kind: none}\n")
    return spec


def test_a_file_is_read(tmp_path: Path) -> None:
    """Kinds are optional, empty lines are skipped, and a line ends at a line feed alone."""
    path = write(tmp_path, '{"text": "a\u2028b", "kind": "code"}\n\n{"text": "c", "more": 1}\r\n')
    assert load_prompts(path) == [Prompt("code", "a\u2028b"), Prompt("text", "c")]


def test_the_built_in_prompts_have_the_kinds_of_the_bench() -> None:
    kinds = {prompt.kind for prompt in load_prompts(BUILT_IN)}
    assert {"chat", "code", "json", "quote", "story"} <= kinds


BAD_LINES = [
    ("not json", "must be a JSON object"),
    ("[1]", "it is a list"),
    ("null", "it is a NoneType"),
    ('{"kind": "chat"}', "text = None"),
    ('{"text": 7}', "text = 7"),
    ('{"text": "  "}', "text = '  '"),
    ('{"text": "x", "kind": null}', "kind = None"),
    ('{"text": "good"}', "stands in an earlier line"),
]


@pytest.mark.parametrize(("line", "words"), BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = write(tmp_path, f'{{"text": "good"}}\n\n{line}\n')
    with pytest.raises(SpecError, match=r"prompts\.jsonl:3: ") as error:
        load_prompts(path)
    assert words in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="holds no prompt"):
        load_prompts(write(tmp_path, "\n\n"))
    with pytest.raises(SpecError, match="byte 10 is not UTF-8"):
        load_prompts(write(tmp_path, b'{"text": "\xff"}\n'))
    with pytest.raises(SpecError, match="No such file"):
        load_prompts(tmp_path / "absent.jsonl")
    with pytest.raises(SpecError, match="Is a directory"):
        load_prompts(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        ("bench",),
        ("bench", "--quick"),
        ("bench", "--concurrency", "1"),
        ("replay", "TRACE"),
        ("conformance",),
        ("conformance", "--serve"),
        ("choose-draft",),
        ("acceptance",),
    ],
)
def test_commands_refuse_a_bad_line_before_any_work(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Whatever loads or serves first would complain about the engines instead."""
    path = write(tmp_path, '{"text": "good"}\n{"text": 7}\n')
    spec = unbuilt(tmp_path)
    words = [str(tmp_path / "trace.jsonl") if word == "TRACE" else word for word in command]
    done = CliRunner().invoke(app, [*words, "--prompts", str(path), "--spec", str(spec)])
    assert done.exit_code == 1
    assert "prompts.jsonl:2: must be a JSON object" in done.stderr, done.stderr + done.stdout
    assert not (tmp_path / "trace.jsonl").exists()


@pytest.mark.parametrize("option", ["--json", "--report"])
def test_a_file_that_cannot_be_written_is_said_first(tmp_path: Path, option: str) -> None:
    for more in ((), ("--orchestrator",)):
        done = CliRunner().invoke(app, ["bench", *more, option, str(tmp_path), "--spec", str(unbuilt(tmp_path))])
        assert done.exit_code == 1 and f"{tmp_path} cannot be written: it is a folder" in done.stderr
