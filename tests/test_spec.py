"""The deployment spec: what is accepted, and errors that name the field, the value and the nearest known key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import EngineError, SpecError
from pipeline.spec import DEFAULT_SPEC, ROOT, DeploymentSpec

PROFILES = sorted((ROOT / "build" / "profiles").glob("*.yaml"))
MINIMAL: dict[str, Any] = {"name": "t", "target": {"model": "m"}, "draft": {"kind": "none"}}


def load(folder: Path, text: str | bytes) -> DeploymentSpec:
    path = folder / "spec.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return DeploymentSpec.load(path)


def changed(**changes: Any) -> str:
    return yaml.safe_dump({**MINIMAL, **changes})


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_loads(path: Path) -> None:
    """What the repository ships is valid, the default among it."""
    spec = DeploymentSpec.load(path)
    assert spec.engine_dir("draft") == ROOT / "engines" / spec.name / "draft"
    assert DEFAULT_SPEC in PROFILES


@pytest.mark.parametrize(
    ("changes", "ahead"),
    [
        ({}, False),
        ({"draft_ahead": True}, True),  # what YAML makes of `on`
        ({"draft_ahead": "off"}, False),
        ({"engine": "tensorrt_llm", "draft": {"kind": "model", "model": "d", "gpus": [1]}}, True),
        ({"engine": "tensorrt_llm"}, False),  # both on GPU 0
        ({"engine": "tensorrt_llm", "draft": {"kind": "ngram"}}, False),
    ],
)
def test_drafts_are_made_ahead_where_nobody_pays_for_it(changes: dict[str, Any], ahead: bool, tmp_path: Path) -> None:
    spec = load(tmp_path, changed(**{"draft": {"kind": "model", "model": "d"}, **changes}))
    assert (spec.drafts_ahead, spec.draft_calls) == (ahead, 1 + ahead)


def test_drafting_ahead_needs_a_draft_model(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"draft_ahead = on: needs a draft model, draft\.kind is none"):
        load(tmp_path, changed(draft_ahead="on"))
    with pytest.raises(SpecError, match=r"draft_ahead: Input should be 'auto', 'on' or 'off' \(got 'yes please'"):
        load(tmp_path, changed(draft_ahead="yes please"))


def test_defaults(tmp_path: Path) -> None:
    """A name, a target and a draft are enough."""
    spec = load(tmp_path, changed())
    assert (spec.engine, spec.dtype, spec.rule, spec.tokens_per_block) == ("embedded", "float16", "auto", 32)
    assert (spec.controller.kind, spec.limits.max_seq_len) == ("goodput", 2048)
    assert not spec.draft.uses_model and DeploymentSpec.model_validate(spec.model_dump()) == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contoller": {}}, "contoller: unknown key; nearest known key: controller"),
        ({"target": {"model": "m", "kvblocks": 4}}, "target.kvblocks: unknown key; nearest known key: kv_blocks"),
        ({"draft": {"kind": "none", "modle": "x"}}, "draft.modle: unknown key; nearest known key: model"),
        ({"draft": {"kind": "ngram", "ngram": {"min_mach": 2}}}, "draft.ngram.min_mach: .* known key: min_match"),
        ({"limits": {"max_sequence_len": 9}}, "limits.max_sequence_len: unknown key; .* key: max_seq_len"),
        ({"ports": {"metric": 1}}, "ports.metric: unknown key; nearest known key: metrics"),
    ],
)
def test_an_unknown_key(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """At any depth, the nearest key that exists there is named."""
    with pytest.raises(SpecError, match=message):
        load(tmp_path, changed(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a b"}, r"name: .*\(got 'a b'\)"),
        ({"name": 12}, r"name: .*string \(got 12\)"),
        ({"engine": "vllm"}, r"engine: .*'embedded' or 'tensorrt_llm' \(got 'vllm'\)"),
        ({"dtype": "int8"}, r"dtype: .*\(got 'int8'\)"),
        ({"rule": "typical"}, r"rule: .*\(got 'typical'\)"),
        ({"tokens_per_block": 48}, r"tokens_per_block: 48 is not a power of two \(got 48\)"),
        ({"tokens_per_block": 0}, r"tokens_per_block: .*greater than or equal to 1 \(got 0\)"),
        ({"limits": {"max_draft_len": 65}}, r"limits.max_draft_len: .*less than or equal to 64 \(got 65\)"),
        ({"limits": {"max_seq_len": "long"}}, r"limits.max_seq_len: .*integer.* \(got 'long'\)"),
        ({"limits": {"max_requests": 0}}, r"limits.max_requests: .*\(got 0\)"),
        ({"controller": {"kind": "best"}}, r"controller.kind: .*\(got 'best'\)"),
        ({"controller": {"burst": 9}}, r"controller.burst: .*less than or equal to 8 \(got 9\)"),
        ({"deadlines": {"draft_s": 0}}, r"deadlines.draft_s: .*greater than 0 \(got 0\)"),
        ({"deadlines": {"target_s": float("inf")}}, r"deadlines.target_s: .*finite number \(got inf\)"),
        ({"deadlines": {"target_s": float("nan")}}, r"deadlines.target_s: .* \(got nan\)"),
        ({"ports": {"grpc": 70000}}, r"ports.grpc: .*\(got 70000\)"),
        ({"target": {"model": "m", "kv_blocks": 1}}, r"target.kv_blocks: .*\(got 1\)"),
        ({"target": {}}, "target.model: Field required"),
        ({"target": "m"}, r"target: .*\(got 'm'\)"),
        (
            {"draft": {"kind": "ngram", "ngram": {"min_match": 5, "max_match": 4}}},
            "min_match = 5 is above max_match = 4",
        ),
        ({"draft": {}}, "draft: kind = hybrid needs a draft model folder in `model`"),
        ({"draft": {"kind": "model", "model": ""}}, "draft: kind = model needs a draft model folder in `model`"),
        ({"draft": {"kind": "none", "head_tokens": 0}}, r"draft.head_tokens: .*\(got 0\)"),
    ],
)
def test_a_wrong_value(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """The field, what is wrong with it, and the value that was given."""
    with pytest.raises(SpecError, match=message):
        load(tmp_path, changed(**changes))


def test_all_errors_at_once(tmp_path: Path) -> None:
    """One message for everything that is wrong, with the file's name."""
    with pytest.raises(SpecError, match=r"spec.yaml: .*rule: .*; .*controler: unknown key"):
        load(tmp_path, changed(rule="x", controler={}))


@pytest.mark.parametrize("part", ["target", "draft"])
def test_pools_hold_the_longest_request(part: str, tmp_path: Path) -> None:
    """prompt + max_tokens + K + 1 of the longest request is what admission asks for; a block less is refused."""
    limits = {"max_seq_len": 119, "max_draft_len": 8}  # 128 tokens are 16 blocks of 8
    fields: dict[str, dict[str, Any]] = {
        "target": {"model": "m", "kv_blocks": 16},
        "draft": {"kind": "model", "model": "d", "kv_blocks": 16},
    }
    assert load(tmp_path, changed(tokens_per_block=8, limits=limits, **fields)).limits.max_seq_len == 119
    fields[part]["kv_blocks"] = 15
    with pytest.raises(SpecError, match=rf"{part}.kv_blocks = 15 blocks hold 120 tokens; .* = 128 tokens would not"):
        load(tmp_path, changed(tokens_per_block=8, limits=limits, **fields))
    fields[part]["kv_blocks"] = 16
    with pytest.raises(SpecError, match=r"would not fit"):
        load(tmp_path, changed(tokens_per_block=8, limits={**limits, "max_seq_len": 120}, **fields))


def test_a_pool_that_is_not_used_may_be_small(tmp_path: Path) -> None:
    """Look-up has no KV cache."""
    assert load(tmp_path, changed(draft={"kind": "ngram", "kv_blocks": 2})).draft.kind == "ngram"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "is not valid YAML: while parsing"),
        ("a: b: c", "is not valid YAML: mapping values"),
        (b"name: \xff\xfe", "is not valid YAML: .*utf-8"),
        ("", "must be a YAML mapping, found NoneType"),
        ("- name", "must be a YAML mapping, found list"),
        ("name", "must be a YAML mapping, found str"),
        ("1: 2", "1: .*string"),
        ("? [a]\n: b", "is not valid YAML"),
        ("!!python/object/apply:os.getcwd []", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_spec(text: str | bytes, message: str, tmp_path: Path) -> None:
    """One line that says why, never a traceback; YAML cannot run code."""
    with pytest.raises(SpecError, match=message) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value) and "spec.yaml" in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    """The path and the reason; a folder is no file either."""
    with pytest.raises(SpecError, match=r"spec .*none.yaml cannot be read: No such file or directory"):
        DeploymentSpec.load(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match=r"cannot be read: Is a directory"):
        DeploymentSpec.load(tmp_path)


def test_a_command_that_runs_engines_here(tmp_path: Path) -> None:
    """TensorRT engines are Triton's: the message says what they need and what to do."""
    load(tmp_path, changed()).require_embedded()
    with pytest.raises(EngineError, match=r"engine: tensorrt_llm needs a GPU and TensorRT-LLM 1\.2\.1, .*`make serve`"):
        load(tmp_path, changed(engine="tensorrt_llm")).require_embedded()


def test_a_spec_cannot_be_changed(tmp_path: Path) -> None:
    """It is shared by everything that was made from it."""
    with pytest.raises(Exception, match="frozen"):
        load(tmp_path, changed()).name = "other"  # type: ignore[misc]


def test_draft_sampling_and_rules(tmp_path: Path) -> None:
    """Drafts from q or greedy; every rule may be the deployment's own."""
    path = tmp_path / "spec.yaml"
    text = "name: t\nrule: {}\ntarget: {{model: m}}\ndraft: {{kind: ngram, sampling: {}}}\n"
    for rule, sampling in (("coupled", "greedy"), ("block", "q"), ("match", "q"), ("token", "greedy"), ("auto", "q")):
        path.write_text(text.format(rule, sampling))
        spec = DeploymentSpec.load(path)
        assert (spec.rule, spec.draft.sampling) == (rule, sampling)
    path.write_text(text.format("auto", "hot"))
    with pytest.raises(SpecError, match=r"draft\.sampling: .*'q' or 'greedy' \(got 'hot'\)"):
        DeploymentSpec.load(path)


@pytest.mark.parametrize(("text", "setting"), [("auto", "auto"), ("off", "off"), ("'off'", "off"), ("0", 0), ("8", 8)])
def test_speculation_to_start_with(text: str, setting: str | int, tmp_path: Path) -> None:
    """YAML reads a bare off as false; it is the word that is meant."""
    spec = load(tmp_path, f"name: t\ntarget: {{model: m}}\ndraft: {{kind: none}}\nspeculation: {text}\n")
    assert spec.speculation == setting and type(spec.speculation) is type(setting)


@pytest.mark.parametrize("text", ["on", "9", "-1", "sometimes", "1.5"])
def test_speculation_that_there_is_not(text: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="speculation"):
        load(tmp_path, f"name: t\ntarget: {{model: m}}\ndraft: {{kind: none}}\nspeculation: {text}\n")


def test_a_relative_trace_counts_from_the_checkout(tmp_path: Path) -> None:
    """Triton's models have another working folder than who started them."""
    assert load(tmp_path, changed(trace="runs/t.jsonl")).trace == ROOT / "runs" / "t.jsonl"
    assert load(tmp_path, changed(trace=str(tmp_path / "t"))).trace == tmp_path / "t"
