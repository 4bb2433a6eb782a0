"""llama.cpp as an optional package: how it is asked, and what is said where it is missing."""

from __future__ import annotations

import os
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from rich.console import Console

from pipeline.bench import llama_cpp as module
from pipeline.bench.contest import Asked
from pipeline.bench.llama_cpp import DRAFT_TOKENS, PACKAGE, PLAIN, LlamaCpp, gguf_files, is_installed, speculative_name
from pipeline.client import bench as bench_module
from pipeline.client.bench import BenchOptions, run_bench
from pipeline.errors import SpecError
from pipeline.spec import DEFAULT_SPEC, DeploymentSpec

SIMPLE = object()


class FakeServer:
    """Remembers its parameters and answers with as many tokens as it was asked for."""

    made: ClassVar[list[FakeServer]] = []

    def __init__(self, params: Any) -> None:
        self.params = params
        self.asked: list[dict[str, Any]] = []
        FakeServer.made.append(self)

    def handle_completions(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        return {"usage": {"completion_tokens": body["n_predict"]}}


def fake_params() -> SimpleNamespace:
    def threads() -> SimpleNamespace:
        return SimpleNamespace(n_threads=0)

    draft = SimpleNamespace(mparams=SimpleNamespace(path=""), cpuparams=threads(), cpuparams_batch=threads())
    return SimpleNamespace(
        model=SimpleNamespace(path=""),
        cpuparams=threads(),
        cpuparams_batch=threads(),
        speculative=SimpleNamespace(draft=draft, types=[]),
    )


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = SimpleNamespace(COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE=SIMPLE)
    fake = SimpleNamespace(CommonParams=fake_params, Server=FakeServer, common_speculative_type=kinds)
    monkeypatch.setitem(sys.modules, PACKAGE, cast(Any, fake))
    FakeServer.made.clear()


@pytest.mark.usefixtures("library")
def test_every_way_gets_the_same_threads_and_tokens() -> None:
    said: list[str] = []
    with LlamaCpp(Path("t.gguf"), Path("d.gguf"), 3, 48, said.append) as llama:
        assert list(llama.decoders) == [PLAIN, *map(speculative_name, DRAFT_TOKENS)]
        assert [decode(Asked("hi", "<hi>", (1,))) for decode in llama.decoders.values()] == [48] * 4
    plain, *others = FakeServer.made
    for server in FakeServer.made:
        params = server.params
        assert params.model.path == "t.gguf" and params.n_gpu_layers == 0 and params.n_parallel == 1
        assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 3
        [body] = server.asked
        assert (body["prompt"], body["temperature"], body["ignore_eos"]) == ("<hi>", 0.0, True)
    assert plain.params.speculative.types == [] and plain.params.speculative.draft.mparams.path == ""
    for k, server in zip(DRAFT_TOKENS, others, strict=True):
        draft = server.params.speculative.draft
        assert server.params.speculative.types == [SIMPLE]
        assert (draft.mparams.path, draft.n_max, draft.cpuparams.n_threads) == ("d.gguf", k, 3)
        assert draft.cpuparams_batch.n_threads == 3
    assert said


@pytest.mark.usefixtures("library")
def test_without_a_draft_it_only_decodes_plainly() -> None:
    with LlamaCpp(Path("t.gguf"), None, 2, 8, lambda what: None) as llama:
        assert list(llama.decoders) == [PLAIN]


def test_gguf_files_are_written_once_and_again_when_the_weights_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, str | None]] = []

    def write(model: Path, tokenizer: Path, destination: Path, embedding: Path | None) -> None:
        written.append((model.name, embedding.name if embedding else None))
        destination.parent.mkdir(exist_ok=True)
        destination.write_text("")

    monkeypatch.setattr(module, "write_gguf", write)
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("")
    both = (tmp_path / "target", tmp_path / "draft", tmp_path / "gguf")
    files = gguf_files(*both)
    assert sorted(written) == [("draft", "target"), ("target", None)]
    assert files == gguf_files(*both) and len(written) == 2
    younger = files[0].stat().st_mtime + 10
    os.utime(tmp_path / "target" / "model.safetensors", (younger, younger))
    gguf_files(*both)
    assert written[2:] == [("target", None)]


def test_a_missing_package_is_a_line_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench says how to install it, and goes on: to the next thing it needs, here prevented."""
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert not is_installed()

    def stop(*_: object) -> None:
        raise SpecError("went on")

    monkeypatch.setattr(bench_module, "read_engine_manifest", stop)
    console = Console(file=StringIO(), width=200)
    with pytest.raises(SpecError, match="went on"):
        run_bench(DeploymentSpec.load(DEFAULT_SPEC), console, BenchOptions(llama_cpp=True))
    said = cast(StringIO, console.file).getvalue()
    assert 'pip install -e ".[bench]"' in said and len(said.splitlines()) == 1
    silent = Console(file=StringIO())
    with pytest.raises(SpecError, match="went on"):
        run_bench(DeploymentSpec.load(DEFAULT_SPEC), silent, BenchOptions())
    assert cast(StringIO, silent.file).getvalue() == ""
