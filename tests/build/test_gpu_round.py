"""The prepared script and the embedded form of gpu-check: all of them that needs no GPU, on tiny shapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_check
import gpu_embedded
import gpu_measure
import gpu_round
import pytest
import torch
from gpu_measure import Pair, agreement, compare_texts, greedy_equality, make_pair, overlap, pass_times, read_shape
from gpu_report import Report
from gpu_steps import program
from rich.console import Console

from pipeline.engine.manifest import Limits
from pipeline.engine.model_config import ModelConfig
from pipeline.errors import EngineError
from pipeline.planning.model_shape import SHAPES
from pipeline.spec import DEFAULT_SPEC, ROOT, DeploymentSpec

QUIET = Console(quiet=True)
TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 211,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
LIMITS = Limits(max_seq_len=192, max_draft_len=8, max_requests=4, kv_blocks=32, tokens_per_block=32)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    torch.set_num_threads(1)
    monkeypatch.setattr(gpu_measure, "CONTEXT", 40)
    monkeypatch.setattr(gpu_measure, "REPEATS", 2)
    monkeypatch.setattr(gpu_measure, "TEXT_TOKENS", 24)
    config = ModelConfig.from_dict({**TINY, "rms_norm_eps": 1e-5})
    small = ModelConfig.from_dict({**TINY, "rms_norm_eps": 1e-5, "num_hidden_layers": 1})
    return make_pair(config, small, "float32", torch.device("cpu"), LIMITS)


def test_the_shapes_are_those_of_the_profiles() -> None:
    """Real sizes, read from what ships; one that does not is refused by name."""
    target, draft = (read_shape(SHAPES / f"{name}.json") for name in (gpu_round.TARGET, gpu_round.DRAFT))
    assert (target.hidden_size, target.num_layers, target.num_kv_heads, target.vocab_size) == (4096, 32, 8, 128256)
    assert (draft.hidden_size, draft.num_layers, draft.tie_word_embeddings) == (2048, 16, True)
    with pytest.raises(EngineError, match=r"no--such.*config\.json cannot be read"):
        read_shape(SHAPES / "no--such.json")


def test_everything_is_asked_and_answered(pair: Pair) -> None:
    """Texts are equal, ways to compute agree, and every pass has a time."""
    found: dict[str, Any] = {}
    assert gpu_round.examine(pair, found, QUIET, time.monotonic() + 100)
    assert list(found) == ["agreement", "greedy", "graphs", "no_graphs", "overlap"]
    assert [one["equal"] for one in found["greedy"]["texts"]] == [True] * 4
    assert all(one["tokens"] == 24 for one in found["greedy"]["texts"])
    for name in ("graphs", "no_graphs"):
        assert list(found[name]["t_verify_ms"]) == [str(k) for k in range(1, 9)]
        assert found[name]["t_draft_ms"] > 0 and found[name]["t_plain_ms"] > 0
    assert json.loads(json.dumps(found)) == found


def test_what_time_is_too_short_for_is_named(pair: Pair) -> None:
    found: dict[str, Any] = {}
    assert not gpu_round.examine(pair, found, QUIET, time.monotonic() - 1)
    assert all(part == {"passed": False, "said": "not begun: the time was over"} for part in found.values())
    assert len(found) == 5


def test_a_question_that_fails_loses_no_other(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written down with its traceback, the next ones are asked, and what is known is kept after each."""

    def fails(pair: Pair) -> dict[str, Any]:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(gpu_round, "greedy_equality", fails)
    found: dict[str, Any] = {}
    kept: list[int] = []
    assert not gpu_round.examine(pair, found, QUIET, time.monotonic() + 600, lambda: kept.append(len(found)))
    assert "CUDA out of memory" in found["greedy"]["said"] and "t_plain_ms" in found["graphs"]
    assert kept == [1, 2, 3, 4, 5]


def test_a_text_that_ends_early_is_no_tie(pair: Pair) -> None:
    assert compare_texts(pair, [3], [5, 6, 7], [5, 6])["ended_early_at"] == 2
    assert not compare_texts(pair, [3], [5, 6, 7], [5, 6])["equal"]


def test_drafts_are_kept_and_rejected(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The equality is not that of plain decoding with itself."""
    accepted: list[tuple[int, int]] = []
    submit = gpu_measure.EmbeddedStepModel.submit

    def watched(self: Any, request: Any) -> Any:
        future = submit(self, request)
        if request.draft_ids:
            accepted.append((future.result().total_accepted_draft_tokens, len(request.draft_ids)))
        return future

    monkeypatch.setattr(gpu_measure.EmbeddedStepModel, "submit", watched)
    assert greedy_equality(pair)["passed"]
    assert any(kept == sent for kept, sent in accepted) and any(0 < kept < sent for kept, sent in accepted)


def test_a_wrong_verify_is_seen(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that is right alone and wrong where several tokens are verified: texts differ, and not by a tie."""
    forward = pair.target.forward

    def wrong(batch: Any) -> Any:
        logits = forward(batch)
        if max(row.logits for row in batch.rows) > 2:
            with torch.inference_mode():
                pair.target._found.copy_(pair.target._found.flip(0))
        return logits

    monkeypatch.setattr(pair.target, "forward", wrong)
    found = greedy_equality(pair)
    assert not found["passed"]
    different = [one for one in found["texts"] if not one["equal"]]
    assert different and all(one["margin"] > gpu_measure.TIE for one in different if not one["near_tie"])


def test_a_tie_is_told_from_a_fault(pair: Pair) -> None:
    """Two texts that part where two logits are as good as equal; and where they are not."""
    prompt = gpu_measure.some_tokens(pair.config, 10, 3)
    row = gpu_measure.logits_of(pair.target, [*prompt, 0], 2)[0]
    order = row.argsort(descending=True).tolist()
    gaps = (row[order][:-1] - row[order][1:]) / row.std()
    near = int(gaps.argmin())
    assert float(gaps[near]) <= gpu_measure.TIE
    found = compare_texts(pair, prompt, [order[near], 5], [order[near + 1], 6])
    assert (found["equal"], found["near_tie"], found["differs_at"]) == (False, True, 0)
    found = compare_texts(pair, prompt, [order[0], 5], [order[-1], 6])
    assert not found["near_tie"] and found["margin"] > 1


def test_a_way_that_disagrees_is_seen(pair: Pair) -> None:
    """Other weights under the same name."""
    assert agreement(pair)["passed"]
    other = {**pair.weights, "norm": pair.weights["norm"] * 1.2}
    found = agreement(replace(pair, weights=other))
    assert not found["passed"] and found["without_graphs"] > gpu_measure.AGREES


def test_times_are_of_the_sizes_that_are_named(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verify of K drafts is a pass of K + 1 tokens; graphs are used where they are asked for."""
    seen: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        gpu_measure, "time_of", lambda decoder, tokens: seen.append((tokens, decoder._runner is not None)) or 1.0
    )
    pass_times(pair, [2, 5], graphs=True)
    pass_times(pair, [2, 5], graphs=False)
    assert seen == [(n, graphs) for graphs in (True, False) for n in (1, 1, 3, 6)]
    assert set(overlap(pair)) == {"apart_ms", "together_ms"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine could really run it")
@pytest.mark.parametrize("script", ["make", "gpu_round"])
def test_without_a_gpu(script: str, tmp_path: Path) -> None:
    """One clear line that names what is missing, a status, and no report that could be taken for one."""
    here = Path(sys.executable)
    commands = {
        "make": ["make", "-s", "gpu-check", "ENGINE=embedded", f"SPECDEC_BIN={here.parent}", f"PYTHON={here}"],
        "gpu_round": [str(here), "build/gpu_round.py", "--json", str(tmp_path / "r.json")],
    }
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "300"}
    done = subprocess.run(commands[script], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "error: device: cuda: torch" in done.stdout and "has run nothing" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr and not list(tmp_path.iterdir())


def test_a_spec_that_is_not_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="is of engine: tensorrt_llm, device: auto; gpu-check of the embedded engine"):
        gpu_embedded.require_gpu(DeploymentSpec.load(gpu_check.SPEC))
    monkeypatch.setattr(gpu_embedded, "require_cuda", lambda: torch.device("cuda:0"))
    assert gpu_embedded.require_gpu(DeploymentSpec.load(gpu_embedded.SPEC)).type == "cuda"
    with pytest.raises(EngineError, match="demo is of engine: embedded, device: cpu"):
        gpu_embedded.require_gpu(DeploymentSpec.load(DEFAULT_SPEC))


@pytest.mark.parametrize("broken", [None, "engines", "conformance"])
def test_the_steps_of_a_check(broken: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails does not hide the others, but for the engines, which they need; the script's file is kept."""
    ran: list[str] = []

    def command(arguments: list[str]) -> str:
        ran.append(arguments[0])
        if arguments[0] == broken:
            raise EngineError(f"{broken} failed")
        return "fine"

    def script(words: list[str], name: str, limit_s: float) -> str:
        assert limit_s == 600
        Path(words[words.index("--json") + 1]).write_text('{"graphs": {"t_draft_ms": 1.5}}')
        return "measured"

    monkeypatch.setattr(gpu_embedded, "command", command)
    monkeypatch.setattr(gpu_embedded, "program", script)
    for name in ("in_process", "served"):
        monkeypatch.setattr(gpu_embedded, name, lambda *given, name=name: ran.append(name) or name)
    report = Report("a check", {})
    gpu_embedded.check(DeploymentSpec.load(gpu_embedded.SPEC), gpu_embedded.SPEC, tmp_path, report, QUIET)
    rest = ["conformance", "in_process", "served"]
    assert ran == ["engines", *(rest if broken != "engines" else [])]
    assert report.passed == (broken is None) and report.data["round"]["graphs"]["t_draft_ms"] == 1.5
    assert [step.name for step in report.steps if not step.passed] == ([broken] if broken else [])


def test_a_program_that_takes_too_long() -> None:
    """It is killed, and what it said until then is told."""
    script = "import time; print('begun', flush=True); time.sleep(60)"
    with pytest.raises(EngineError, match=r"script did not end within 3 s:\nbegun"):
        program(["-c", script], "script", 3.0)
    assert program(["-c", "print('done')"], "script", 60.0) == "done\n"
