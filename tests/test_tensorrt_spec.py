"""TensorRT fields of the spec: defaults, what either engine refuses, and sums that must fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import SpecError
from pipeline.spec import ROOT, DeploymentSpec
from pipeline.tensorrt_spec import MOST_TOGETHER, cuda_graphs, kv_fraction

PROFILES = [
    path for path in sorted((ROOT / "build" / "profiles").glob("*.yaml")) if "engine: tensorrt_llm" in path.read_text()
]


def load(folder: Path, **changes: Any) -> DeploymentSpec:
    """A pair on one GPU; sections given are merged, other fields replaced."""
    fields: dict[str, Any] = {
        "name": "t",
        "engine": "tensorrt_llm",
        "target": {"model": "org/target"},
        "draft": {"kind": "model", "model": "org/draft"},
    }
    for key, value in changes.items():
        fields[key] = {**fields[key], **value} if isinstance(fields.get(key), dict) else value
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(fields))
    return DeploymentSpec.load(path)


def test_the_profiles_of_the_issue_are_there() -> None:
    names = {path.stem for path in PROFILES}
    assert {"llama-3.1-70b-1b", "llama-3.3-70b-fp8-1b", "llama-3.1-8b-1b", "demo-tensorrt"} <= names
    assert {"qwen2.5-32b-0.5b", "qwen3-32b-0.6b"} <= names


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_fits_its_gpus(path: Path) -> None:
    """Every rank has a GPU; on a shared one the KV pools leave something over."""
    spec = DeploymentSpec.load(path)
    for role in spec.model_roles:
        assert len(spec.step_model(role).device_ids) == spec.step_model(role).world_size
    assert spec.shares_gpu
    bounded = all(spec.step_model(role).kv_tokens is not None for role in spec.model_roles)
    assert bounded or sum(kv_fraction(spec, role) for role in spec.model_roles) <= MOST_TOGETHER


def test_defaults(tmp_path: Path) -> None:
    """Two models on GPU 0: graphs for the draft alone, fractions that add up."""
    spec = load(tmp_path)
    assert spec.target.device_ids == spec.draft.device_ids == (0,) and spec.shares_gpu
    assert (kv_fraction(spec, "target"), kv_fraction(spec, "draft")) == (0.6, 0.2)
    assert not cuda_graphs(spec, "target").enabled and cuda_graphs(spec, "draft").enabled
    assert cuda_graphs(spec, "draft").cache_size == spec.limits.max_requests
    assert DeploymentSpec.model_validate_json(spec.model_dump_json()) == spec


def test_gpus_of_their_own(tmp_path: Path) -> None:
    """What is not shared takes the usual 0.9; TP4 without `gpus` is on the first four."""
    spec = load(tmp_path, target={"tensor_parallel": 2, "pipeline_parallel": 2}, draft={"gpus": [4]})
    assert spec.target.device_ids == (0, 1, 2, 3) and not spec.shares_gpu
    assert kv_fraction(spec, "target") == kv_fraction(spec, "draft") == 0.9
    assert not load(tmp_path, draft={"kind": "ngram"}).shares_gpu


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": {"kv_blocks": 9}}, "target.kv_blocks = 9 is for engine: embedded, not for engine: tensorrt_llm"),
        ({"draft": {"head_tokens": 9}}, "draft.head_tokens = 9 is for engine: embedded"),
        ({"target": {"threads": 2}}, "target.threads = 2 is for engine: embedded"),
        ({"dtype": "float32"}, "dtype = 'float32': engine: tensorrt_llm computes in float16"),
        ({"rule": "block"}, "rule = 'block': engine: tensorrt_llm offers token"),
        ({"limits": {"max_draft_len": 0}}, "limits.max_draft_len = 0: .* at least 1"),
        (
            {"limits": {"max_requests": 64, "max_draft_len": 8}, "tensorrt_llm": {"max_num_tokens": 575}},
            r"tensorrt_llm.max_num_tokens = 575: .* = 576 tokens would not fit",
        ),
        (
            {"limits": {"max_seq_len": 4096}, "tensorrt_llm": {"max_num_tokens": 4096, "chunked_context": False}},
            r"max_num_tokens = 4096: without chunked_context .*limits.max_draft_len = 4104",
        ),
        ({"target": {"gpus": [0, 1]}}, r"target: gpus = \[0, 1\] must be 1 distinct device ids"),
        ({"target": {"tensor_parallel": 2, "gpus": [1, 1]}}, r"target: gpus = \[1, 1\] must be 2 distinct"),
        ({"target": {"gpus": [-1]}}, r"target.gpus.0: .*\(got -1\)"),
        ({"target": {"tensor_parallel": 0}}, r"target.tensor_parallel: .*\(got 0\)"),
        ({"target": {"kv_fraction": 1.0}}, r"target.kv_fraction: .*less than 1 \(got 1.0\)"),
        ({"draft": {"kv_fraction": float("nan")}}, r"draft.kv_fraction: .*\(got nan\)"),
        (
            {"target": {"kv_fraction": 0.9}, "draft": {"kv_fraction": 0.2}},
            r"target.kv_fraction 0.9 \+ draft.kv_fraction 0.2 = 1.1: .* may add up to 0.95",
        ),
        ({"target": {"kv_tokens": 2056}}, r"target.kv_tokens = 2056: .* = 2057 tokens would not fit"),
        ({"target": {"weights": "int2"}}, r"target.weights: .*\(got 'int2'\)"),
        ({"tensorrt_llm": {"kv_cache_dtype": "fp8"}}, r"kv_cache_dtype = 'fp8' needs target.weights: fp8"),
        ({"tensorrt_llm": {"cuda_graph": True}}, "tensorrt_llm.cuda_graph: unknown key; .*_cuda_graphs"),
        ({"tensorrt_llm": {"draft_cuda_graphs": {"size": 1}}}, "draft_cuda_graphs.size: unknown key; .* cache_size"),
        ({"tensorrt_llm": {"container": "a b"}}, r"tensorrt_llm.container: .*\(got 'a b'\)"),
    ],
)
def test_what_tensorrt_refuses(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        load(tmp_path, **changes)


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ({"tensor_parallel": 2}, "2"),
        ({"pipeline_parallel": 2}, "2"),
        ({"weights": "fp8"}, "'fp8'"),
        ({"gpus": [0]}, r"\(0,\)"),
        ({"kv_fraction": 0.5}, "0.5"),
        ({"kv_tokens": 9}, "9"),
        ({"engine_dir": "x"}, "'x'"),
    ],
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_what_the_embedded_engine_refuses(role: str, section: dict[str, Any], value: str, tmp_path: Path) -> None:
    field = next(iter(section))
    with pytest.raises(SpecError, match=f"{role}.{field} = {value} is for engine: tensorrt_llm, not .*: embedded"):
        load(tmp_path, engine="embedded", **{role: section})


def test_the_section_is_for_its_engine(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="tensorrt_llm: this section is for engine: tensorrt_llm"):
        load(tmp_path, engine="embedded", tensorrt_llm={"max_num_tokens": 4096})
