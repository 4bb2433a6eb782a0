"""`specdec plan` as a user meets it: every profile, every option, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from pipeline.client.cli import app
from pipeline.engine.manifest import Capabilities, CostTable, Limits, Manifest
from pipeline.planning.plan import ask
from pipeline.spec import DEFAULT_SPEC, ROOT, DeploymentSpec, Role

PROFILES = sorted((ROOT / "build" / "profiles").glob("*.yaml"))
ON_GPUS = [path for path in PROFILES if DeploymentSpec.load(path).engine == "tensorrt_llm"]
BIG = ROOT / "build" / "profiles" / "llama-3.1-70b-1b.yaml"


def plan(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)], env={"COLUMNS": "220"})


def plan_json(*arguments: str | Path) -> dict[str, Any]:
    done = plan(*arguments, "--json")
    assert done.exit_code == 0, done.output
    data: dict[str, Any] = json.loads(done.output)
    return data


@pytest.mark.parametrize("path", ON_GPUS, ids=lambda path: path.stem)
def test_every_profile_is_planned(path: Path) -> None:
    """It fits some GPU of the table, and speculation is compared for every K of the spec."""
    data, spec = plan_json(path), DeploymentSpec.load(path)
    assert any(entry["fits"] for entry in data["plans"])
    for entry in data["plans"]:
        assert entry["fits"] == (entry["obstacle"] is None) == (entry["sequences"] > 0)
        for speed in entry["speeds"]:
            assert [outcome["k"] for outcome in speed["outcomes"]] == list(range(spec.limits.max_draft_len + 1))
        for gpu in entry["memory"]:
            assert gpu["used"] == pytest.approx(
                sum(sum(gpu[role].values()) for role in ("target", "draft") if role in gpu)
            )
    assert plan(path).exit_code == 0


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("llama-3.1-8b-1b", "L4"),
        ("llama-3.1-70b-1b", "H100-SXM"),
        ("llama-3.3-70b-fp8-1b", "H200"),
        ("qwen2.5-32b-0.5b", "A100-80GB"),
        ("qwen3-32b-0.6b", "A100-80GB"),
        ("demo-tensorrt", "L4"),
    ],
)
def test_a_profile_fits_the_gpus_it_names(name: str, gpu: str) -> None:
    """With room for a request of the greatest length beside others."""
    path = ROOT / "build" / "profiles" / f"{name}.yaml"
    (entry,) = plan_json(path, "--gpu", gpu, "--context", str(DeploymentSpec.load(path).limits.max_seq_len))["plans"]
    assert entry["fits"] and entry["sequences"] >= 3


def test_the_default_spec_is_planned_on_this_machine() -> None:
    data = plan_json()
    assert data["engine"] == "embedded" and data["machine"]["fits"]
    assert data["machine"]["needed"] > 0.3e9
    assert any("acceptance" in line for line in data["machine"]["unknown"])


def test_tables_name_what_is_assumed() -> None:
    done = plan(BIG, "--gpu", "H100-SXM", "--acceptance", "0.55", "--round-ms", "1.5")
    assert "acceptance 0.55" in done.output and "1.5 ms a round" in done.output
    assert "nothing here was measured on a GPU" in done.output
    assert "kv_tokens: " in done.output


def test_acceptance_and_overhead_move_the_plan() -> None:
    def best(*options: str) -> float:
        speed = plan_json(BIG, "--gpu", "H200", "--batch", "1", *options)["plans"][0]["speeds"][0]
        return float(max(outcome["speedup"] for outcome in speed["outcomes"]))

    assert best("--acceptance", "0.1") < best("--acceptance", "0.5") < best("--acceptance", "0.9")
    assert best("--round-ms", "0") > best("--round-ms", "10")


def test_the_advice_on_kv_tokens_works(tmp_path: Path) -> None:
    """A spec changed as the plan says holds what the plan says."""
    advised = plan_json(BIG, "--gpu", "H100-SXM")["plans"][0]
    spec = yaml.safe_load(BIG.read_text())
    for role in ("target", "draft"):
        spec[role] |= {"kv_tokens": advised["balanced_kv_tokens"], "kv_fraction": 0.9}
    path = tmp_path / "advised.yaml"
    path.write_text(yaml.safe_dump(spec))
    found = plan_json(path, "--gpu", "H100-SXM")["plans"][0]
    assert found["sequences"] == advised["balanced_sequences"] > advised["sequences"]


def test_another_number_of_gpus() -> None:
    four, eight = (plan_json(BIG, "--gpu", "H200", "--gpus", str(number))["plans"][0] for number in (4, 8))
    assert (four["gpus"], eight["gpus"]) == (4, 8)
    assert len(eight["memory"]) == 8
    assert eight["memory"][0]["target"]["weights"] < four["memory"][0]["target"]["weights"]


def test_what_does_not_fit_says_why_and_ends_with_1() -> None:
    done = plan(BIG, "--gpu", "L4")
    assert done.exit_code == 1 and "before any KV, has 24" in done.output
    fp8 = plan(ROOT / "build" / "profiles" / "llama-3.3-70b-fp8-1b.yaml", "--gpu", "A100-80GB")
    assert fp8.exit_code == 1 and "has no FP8 arithmetic" in fp8.output


def test_matrix_and_check() -> None:
    cells = plan_json(BIG, "--matrix", "--gpu", "H200", "--batch", "4")["matrix"]
    assert [cell["draft"].rsplit("-", 2)[1] for cell in cells] == ["1B", "3B", "8B"]
    assert plan("--matrix").output == plan(BIG, "--matrix").output
    rows = plan_json("--check")["rows"]
    assert {row["kind"] for row in rows} == {"arithmetic", "calibration", "prediction"}
    for row in rows:
        assert row["error"] == pytest.approx(row["predicted"] / row["published"] - 1)
    assert "51.14 tokens/s" in plan("--check").output


def test_a_picture(tmp_path: Path) -> None:
    """Well-formed, one bar outline per GPU, one line per batch."""
    path = tmp_path / "plan.svg"
    assert plan(BIG, "--gpu", "H100-SXM", "--out", path).exit_code == 0
    texts = [element.text or "" for element in ElementTree.parse(path).getroot().iter() if element.tag.endswith("text")]
    assert sum(text.startswith("GPU ") for text in texts) == 4
    assert sum(text.startswith("batch ") for text in texts) == len(ask(DeploymentSpec.load(BIG)).batches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpu", "L40"), "gpu = 'L40': nearest: L40S; known: A100"),
        (("--acceptance", "1.5"), "acceptance = 1.5: must be between 0 and 1"),
        (("--acceptance", "nan"), "acceptance = nan: must be between 0 and 1"),
        (("--context", "9000"), "context = 9000: must be between 1 and limits.max_seq_len = 8192"),
        (("--batch", "0"), "batch = 0: must be between 1 and limits.max_requests = 32"),
        (("--round-ms", "-1"), "round-ms = -1.0: must be between 0 and 10000"),
        (("--gpus", "3"), "target.tensor_parallel = 3: does not divide num_attention_heads = 64"),
        (("--out", "plan.png"), "out = 'plan.png': must end in .svg"),
        (("--out", "/nowhere/plan.svg"), "out = '/nowhere/plan.svg': cannot be written"),
    ],
)
def test_options_that_are_refused(options: tuple[str, ...], message: str) -> None:
    done = plan(BIG, *options)
    assert done.exit_code == 1 and done.output.startswith("error: ") and message in done.output


@pytest.mark.parametrize("option", [("--gpu", "H200"), ("--gpus", "1"), ("--batch", "1"), ("--matrix",)])
def test_options_for_gpus_are_refused_for_the_embedded_engine(option: tuple[str, ...]) -> None:
    done = plan(DEFAULT_SPEC, *option)
    assert done.exit_code == 1 and f"{option[0]} is for engine: tensorrt_llm" in done.output


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("someone/unheard-of", "someone/unheard-of: its shape is not in build/profiles/shapes"),
        ("./nowhere", "nowhere does not exist"),
        ("demo:other", "demo:other is not known; known: demo:smollm2"),
    ],
)
def test_models_that_are_not_known(model: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        yaml.safe_dump({"name": "t", "engine": "tensorrt_llm", "target": {"model": model}, "draft": {"kind": "ngram"}})
    )
    done = plan(path)
    assert done.exit_code == 1 and message in done.output


def test_measured_costs_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """With built engines the plan of the embedded demo rests on their cost tables."""

    def manifest(spec: DeploymentSpec, role: Role) -> Manifest:
        seconds = {1: 0.010, 4: 0.011, 12: 0.020} if role == "target" else {1: 0.001}
        return Manifest(
            version=1, role=role, engine="embedded", model="m", source_sha256="", dtype="float16", vocab_size=9,
            padded_vocab_size=9, end_id=2, files={}, built_with={},
            limits=Limits(max_seq_len=9, max_draft_len=9, max_requests=1, kv_blocks=2, tokens_per_block=8),
            capabilities=Capabilities(
                rules=(), draft_options=(), generation_logits="raw", log_probs=True, drops_drafts=False,
                deterministic=True,
            ),
            cost=CostTable(context_tokens=256, seconds_by_tokens=seconds),
        )  # fmt: skip

    monkeypatch.setattr("pipeline.planning.machine_plan.read_engine_manifest", manifest)
    speed = plan_json("--acceptance", "0.8", "--round-ms", "0")["machine"]["speed"]
    plain, three = speed["outcomes"][0], speed["outcomes"][3]
    assert plain["tokens_s"] == pytest.approx(100)
    assert three["round_s"] == pytest.approx(3 * 0.001 + 0.011)
    assert three["tokens_s"] == pytest.approx((1 + 0.8 + 0.64 + 0.512) / 0.014)
    assert speed["speed_ratio"] == pytest.approx(10)
