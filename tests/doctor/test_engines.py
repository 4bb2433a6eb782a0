"""Engines against spec, release and GPU; and the command as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from doctor.support import GPU_MACHINE, H100, findings_of, make_spec, severities, write_model
from pipeline.client.cli import app
from pipeline.doctor.checks.engines import Engines
from pipeline.doctor.machine import Machine
from pipeline.engine.manifest import Capabilities, CostTable, Limits, Manifest, TensorRTFacts
from pipeline.engine.tensorrt_config import CONFIG_NAME, engine_name
from pipeline.serving import tensorrt_parameters
from pipeline.spec import ROOT, DeploymentSpec
from pipeline.tensorrt_spec import kv_blocks

PROFILES = sorted((ROOT / "build" / "profiles").glob("*.yaml"))


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Engine folders of every spec, away from the checkout."""
    folder = tmp_path / "engines"
    monkeypatch.setattr(DeploymentSpec, "engines_dir", property(lambda spec: folder))
    yield folder


def write_manifest(folder: Path, spec: DeploymentSpec, facts: TensorRTFacts | None = None, **limits: int) -> None:
    """A target's manifest that fits the spec, but for `limits`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").touch()
    blocks = spec.target.kv_blocks if spec.engine == "embedded" else kv_blocks(spec, "target")
    given = {
        "max_seq_len": spec.limits.max_seq_len,
        "max_draft_len": spec.limits.max_draft_len,
        "max_requests": spec.limits.max_requests,
        "kv_blocks": blocks,
        "tokens_per_block": spec.tokens_per_block,
        **limits,
    }
    capabilities = Capabilities(
        rules=("token",), draft_options=(), generation_logits="raw", log_probs=False, drops_drafts=True,
        deterministic=False,
    )  # fmt: skip
    Manifest(
        version=1, role="target", engine=spec.engine, model=spec.target.model, source_sha256="", dtype="float16",
        vocab_size=258, padded_vocab_size=512, end_id=1, files={"weights": ""}, limits=Limits(**given),
        capabilities=capabilities, cost=CostTable(context_tokens=1, seconds_by_tokens={1: 1.0}), built_with={},
        tensorrt=facts,
    ).write(folder)  # fmt: skip


def test_no_engine_is_not_passed(engines: Path, target: Path, draft: Path) -> None:
    found = findings_of(Engines, make_spec(target, draft))
    assert severities(found) == ["not checked"] * 2 and all("make engines" in finding.todo for finding in found)


def test_an_engine_of_this_spec(engines: Path, target: Path) -> None:
    spec = make_spec(target, None)
    write_manifest(engines / "target", spec)
    assert severities(findings_of(Engines, spec)) == ["ok"]
    (engines / "target" / "weights").unlink()
    (finding,) = findings_of(Engines, spec)
    assert finding.severity == "error" and "lacks weights" in finding.what


def test_an_engine_of_an_older_spec(engines: Path, target: Path) -> None:
    spec = make_spec(target, None)
    write_manifest(engines / "target", spec, max_draft_len=2)
    (finding,) = findings_of(Engines, spec)
    assert finding.severity == "error" and "limits.max_draft_len is 4, was 2" in finding.what


def test_a_broken_manifest(engines: Path, target: Path) -> None:
    spec = make_spec(target, None)
    write_manifest(engines / "target", spec)
    (engines / "target" / "manifest.json").write_text("{}")
    (finding,) = findings_of(Engines, spec)
    assert finding.severity == "error" and "is not a manifest" in finding.what


@pytest.mark.parametrize(
    ("machine", "compiled", "severity", "message"),
    [
        (GPU_MACHINE, "9.0", "ok", "for this GPU"),
        (GPU_MACHINE, "8.0", "error", "compiled for compute capability 8.0, here is 9.0"),
        (GPU_MACHINE, "unknown", "not checked", "cannot be seen"),
        (replace(GPU_MACHINE, tensorrt_llm="1.1.0"), "9.0", "error", "compiled by TensorRT-LLM 1.2.1, here is 1.1.0"),
        (replace(GPU_MACHINE, gpus=()), "9.0", "not checked", "cannot be seen"),
        (Machine(gpus=(H100,)), "9.0", "not checked", "cannot be seen"),
    ],
)
def test_an_engine_for_another_gpu_or_version(
    machine: Machine, compiled: str, severity: str, message: str, engines: Path, target: Path
) -> None:
    spec = make_spec(target, None, engine="tensorrt_llm")
    facts = TensorRTFacts(
        engine_path="engine", tensorrt_llm="1.2.1", tensorrt="10.14.1", compute_capability=compiled,
        tensor_parallel=1, pipeline_parallel=1, max_num_tokens=8192, quantization=None, inputs_sha256="",
        build_arguments=(),
    )  # fmt: skip
    write_manifest(engines / "target", spec, facts)
    (finding,) = findings_of(Engines, spec, machine)
    assert finding.severity == severity and message in finding.what


def write_engine(folder: Path, **build: Any) -> None:
    """config.json as trtllm-build writes it, and the engine of one rank."""
    folder.mkdir()
    model = {"architecture": "LlamaForCausalLM", "dtype": "float16", "num_hidden_layers": 2, "vocab_size": 512}
    config = {
        "max_seq_len": 2052, "max_batch_size": 4, "max_num_tokens": 8192, "max_draft_len": 4,
        "speculative_decoding_mode": 2, "kv_cache_type": "PAGED",
        "plugin_config": {"tokens_per_block": 32, "use_paged_context_fmha": True}, **build,
    }  # fmt: skip
    data = {"version": "1.2.1", "pretrained_config": model, "build_config": config}
    (folder / CONFIG_NAME).write_text(json.dumps(data))
    (folder / engine_name(0)).touch()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ({}, None),
        ({"max_draft_len": 3}, "limits.max_draft_len = 4, the engine's max_draft_len is 3"),
        ({"max_batch_size": 2}, "limits.max_requests = 4"),
        ({"speculative_decoding_mode": 1}, "speculative_decoding_mode is not draft_tokens_external"),
    ],
)
def test_an_engine_from_elsewhere(build: dict[str, Any], message: str | None, engines: Path, tmp_path: Path) -> None:
    target = write_model(tmp_path / "target")
    write_engine(tmp_path / "compiled", **build)
    changes = {"engine": "tensorrt_llm", "target.engine_dir": str(tmp_path / "compiled"), "draft.kind": "ngram"}
    first, second = findings_of(Engines, make_spec(target, None, **changes))
    assert first.severity == ("ok" if message is None else "error")
    assert message is None or message in first.what
    assert second.severity == "not checked"


def test_a_relative_engine_folder_counts_from_the_repository(
    engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the build and the rendering, from wherever the command is called."""
    target = write_model(tmp_path / "target")
    write_engine(tmp_path / "compiled")
    monkeypatch.setattr(tensorrt_parameters, "ROOT", tmp_path)
    changes = {"engine": "tensorrt_llm", "target.engine_dir": "compiled", "draft.kind": "ngram"}
    assert findings_of(Engines, make_spec(target, None, **changes))[0].severity == "ok"


def test_an_engine_folder_without_an_engine(engines: Path, tmp_path: Path) -> None:
    target = write_model(tmp_path / "target")
    changes = {"engine": "tensorrt_llm", "target.engine_dir": str(tmp_path / "nowhere")}
    first, _ = findings_of(Engines, make_spec(target, None, **changes))
    assert first.severity == "error" and "target.engine_dir" in first.what


def doctor(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)], env={"COLUMNS": "220"})


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_is_examined(path: Path) -> None:
    """Every finding that is not ok says why it matters and what to do; what was not seen is not passed."""
    data = json.loads(doctor(path, "--json").output)
    assert data["name"] == DeploymentSpec.load(path).name
    found = data["findings"]
    assert sum(data["counts"].values()) == len(found)
    for finding in found:
        assert finding["what"]
        assert bool(finding["why"] and finding["todo"]) == (finding["severity"] != "ok"), finding
    names = {finding["check"] for finding in found}
    assert {"model folders", "tokenizers", "context length", "draft in use", "memory", "/dev/shm", "ports"} <= names


def test_errors_end_with_1(tmp_path: Path, target: Path, draft: Path) -> None:
    """The table shows what, why and what to do; square brackets are text."""
    ports = {"http": 0, "grpc": 0, "metrics": 0}
    good = make_spec(target, draft, ports=ports)
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(good.model_dump(mode="json", exclude_defaults=True)))
    done = doctor(path)
    assert done.exit_code == 0, done.output
    (draft / "tokenizer.json").write_text("[1")
    done = doctor(path)
    assert done.exit_code == 1
    assert "is damaged" in done.output and "why: " in done.output and "do: " in done.output


def test_a_spec_or_gpu_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: x\ntargt: {}\n")
    done = doctor(path)
    assert done.exit_code == 1 and "targt: unknown key; nearest known key: target" in done.output
    done = doctor("--gpu", "H900")
    assert done.exit_code == 1 and done.output.startswith("error: gpu = 'H900'")
