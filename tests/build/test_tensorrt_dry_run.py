"""`--dry-run` on every profile: the whole list of commands, with nothing installed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tensorrt_engines

from pipeline.errors import EngineError
from pipeline.spec import ROOT, DeploymentSpec

PROFILES = [
    path for path in sorted((ROOT / "build" / "profiles").glob("*.yaml")) if "engine: tensorrt_llm" in path.read_text()
]


def commands(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What a shell would run."""
    monkeypatch.setenv("PATH", "/nonexistent")
    lines: list[str] = []
    tensorrt_engines.print_commands(DeploymentSpec.load(path), lines.append)
    text = "\n".join(lines).replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in text.splitlines() if shlex.split(line, comments=True)]


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine is compiled from the checkpoint before it, with the flags of its role and no others."""
    spec = DeploymentSpec.load(path)
    found = commands(path, monkeypatch)
    converts = [command for command in found if any("examples" in word for word in command)]
    builds = [command for command in found if command[0] == "trtllm-build"]
    assert len(converts) == len(builds) == 2
    for role, convert, build in zip(spec.model_roles, converts, builds, strict=True):
        part = spec.step_model(role)
        assert option(build, "--checkpoint_dir") == option(convert, "--output_dir")
        assert option(convert, "--tp_size") == str(part.tensor_parallel) and option(convert, "--dtype") == "float16"
        for name in ("--use_paged_context_fmha", "--context_fmha", "--remove_input_padding"):
            assert option(build, name) == "enable"
        assert option(build, "--kv_cache_type") == "paged" and option(build, "--max_beam_width") == "1"
        assert option(build, "--gemm_plugin") == ("disable" if part.weights == "fp8" else "auto")
        assert option(build, "--logits_dtype") == "float32"
        assert option(build, "--max_batch_size") == str(spec.limits.max_requests)
        assert option(build, "--input_timing_cache") == option(build, "--output_timing_cache")
        assert ("--reduce_fusion" in build) <= (part.tensor_parallel > 1)
    target, draft = builds
    assert option(target, "--speculative_decoding_mode") == "draft_tokens_external"
    assert option(target, "--max_draft_len") == str(spec.limits.max_draft_len)
    assert "--gather_generation_logits" not in target and "--gather_generation_logits" in draft
    assert "--speculative_decoding_mode" not in draft and "--max_draft_len" not in draft
    # trtllm-build adds the target's drafts to its length by itself; the draft must reach as far.
    reach = int(option(target, "--max_seq_len")) + spec.limits.max_draft_len
    assert int(option(draft, "--max_seq_len")) == reach


def test_fp8_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(path for path in PROFILES if "fp8" in path.stem)
    convert = next(command for command in commands(path, monkeypatch) if command[1].endswith("quantize.py"))
    assert (option(convert, "--qformat"), option(convert, "--kv_cache_dtype")) == ("fp8", "fp8")


def test_what_can_be_seen_to_fail(tmp_path: Path) -> None:
    """A tensor_parallel that does not divide the heads needs no GPU to be refused."""
    spec = tmp_path / "spec.yaml"
    text = "name: t\nengine: tensorrt_llm\ntarget: {{model: {}, tensor_parallel: {}}}\ndraft: {{kind: none}}\n"
    spec.write_text(text.format("Qwen/Qwen2.5-32B-Instruct", 16))
    with pytest.raises(EngineError, match=r"target\.tensor_parallel = 16: does not divide num_attention_heads = 40"):
        tensorrt_engines.print_commands(DeploymentSpec.load(spec), lambda line: None)
    spec.write_text(text.format("google/gemma-2-2b-it", 1))
    with pytest.raises(EngineError, match="architecture Gemma2ForCausalLM is not supported"):
        tensorrt_engines.print_commands(DeploymentSpec.load(spec), lambda line: None)


def test_a_plain_target_is_no_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: t\nengine: tensorrt_llm\ntarget: {model: Qwen/Qwen3-0.6B}\ndraft: {kind: none}\n")
    build = commands(spec, monkeypatch)[-1]
    assert "--speculative_decoding_mode" not in build and "--max_draft_len" not in build


def test_make_prints_them() -> None:
    """`make engines SPEC=... DRY_RUN=1` is the same, without setting anything up."""
    profile = ROOT / "build" / "profiles" / "llama-3.1-8b-1b.yaml"
    # SPECDEC_BIN: the environment that runs this test is taken as it is, as in an image that carries this package.
    here = Path(sys.executable).parent
    command = ["make", "-s", "engines", f"SPEC={profile}", "DRY_RUN=1", f"SPECDEC_BIN={here}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trtllm-build") == 2
