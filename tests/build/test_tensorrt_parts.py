"""Parts of the TensorRT build: hashes that are kept, programs with logs, estimated costs, padded vocabularies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import tensorrt_commands
import tensorrt_manifest
from fake_engine import write_engine
from file_hashes import FileHashes, words_hash
from hypothesis import given
from hypothesis import strategies as st
from tensorrt_program import LAST_LINES, run_program

from pipeline.engine.manifest import sha256_file
from pipeline.engine.tensorrt_config import TensorRTEngineConfig
from pipeline.errors import EngineError


def test_a_hash_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again when size or time has changed, and not because a folder was renamed."""
    computed: list[str] = []

    def counted(path: Path) -> str:
        computed.append(path.name)
        return sha256_file(path)

    monkeypatch.setattr("file_hashes.sha256_file", counted)
    folder, kept = tmp_path / "old", tmp_path / "hashes.json"
    folder.mkdir()
    file = folder / "weights"
    file.write_bytes(b"one")
    first = FileHashes(kept, lambda line: None)
    assert first.file(file) == first.file(file) == sha256_file(file)
    assert FileHashes(kept, lambda line: None).file(file) == sha256_file(file)
    folder.rename(tmp_path / "new")
    first.moved(folder, tmp_path / "new")
    file = tmp_path / "new" / "weights"
    assert FileHashes(kept, lambda line: None).file(file) == sha256_file(file)
    assert computed == ["weights"]
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert first.file(file) == sha256_file(file) and computed == ["weights"] * 2
    kept.write_text("not JSON")
    assert FileHashes(kept, lambda line: None).file(file) == sha256_file(file)


@given(st.lists(st.text()), st.lists(st.text()))
def test_words_do_not_run_into_one_another(first: list[str], second: list[str]) -> None:
    assert (words_hash(*first) == words_hash(*second)) == (first == second)


def test_a_program_and_its_log(tmp_path: Path) -> None:
    """Everything goes into the log, also what a progress bar overwrites; the last lines go into the error."""
    log, shown = tmp_path / "logs" / "x.log", list[str]()
    script = "print('one'); print('50%', end='\\r'); print('100%')"
    assert run_program("role: doing", [sys.executable, "-c", script], log, shown.append) > 0
    assert log.read_text().splitlines()[-3:] == ["one", "50%", "100%"]
    assert shown[-1].startswith("role: doing, 0 s: 100%") or "s: 100%" in shown[-1]
    script = "import sys\nfor i in range(9): print('line', i)\nsys.exit(4)"
    with pytest.raises(EngineError, match=r"doing failed \(status 4\): line 4 \| .* \| line 8 \(log: ") as caught:
        run_program("doing", [sys.executable, "-c", script], log, shown.append)
    assert str(caught.value).count("line") == LAST_LINES
    with pytest.raises(EngineError, match="no output"):
        run_program("doing", ["false"], log, shown.append)
    with pytest.raises(EngineError, match=r"nowhere cannot be started \(No such file"):
        run_program("doing", ["/nowhere"], log, shown.append)


@given(vocab=st.integers(1, 300_000), ranks=st.integers(1, 16))
def test_logits_are_padded_to_the_ranks(vocab: int, ranks: int) -> None:
    """The least width that every rank holds an equal part of."""
    config = TensorRTEngineConfig(
        "1.2.1", "LlamaForCausalLM", "float16", 1, vocab, ranks, 1, None, 9, 1, 9, 1, 0, False, False, True, True, 32
    )
    padded = config.padded_vocab_size
    assert padded % ranks == 0 and vocab <= padded < vocab + ranks


def test_an_estimated_cost(tmp_path: Path) -> None:
    """Bytes over bandwidth: more bytes cost more, a slower memory costs more, new tokens nothing until 64."""
    config = TensorRTEngineConfig.read(write_engine(tmp_path, "target"))

    def seconds(size: int, gpu: str, tokens: int = 1) -> float:
        return tensorrt_manifest.estimated_cost(size, config, gpu).seconds(tokens)

    size = 16 << 30
    h100, l4 = seconds(size, "NVIDIA H100 80GB HBM3"), seconds(size, "NVIDIA L4")
    assert 0.004 < h100 < 0.008 < l4
    assert seconds(size, "a GPU of tomorrow") == h100
    assert seconds(size, "", 9) == h100 and seconds(2 * size, "") > 1.9 * h100
    assert not tensorrt_manifest.estimated_cost(size, config, "").measured


def test_commands_for_a_shell() -> None:
    text = tensorrt_commands.shown(["python3", "a b.py", "--dir", "/x y", "--flag", "--n", "1"])
    assert text == "python3 'a b.py' \\\n    --dir '/x y' \\\n    --flag \\\n    --n 1"
