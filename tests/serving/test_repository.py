"""A rendered repository is one that Triton accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from pipeline.errors import ServerError
from pipeline.serving.contract import SPEC_DECODE, STEP, ModelContract
from pipeline.serving.repository import TEMPLATES, RepositoryOptions, render_repository, validate_config
from pipeline.spec import DeploymentSpec

from .support import make_spec


def read(path: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse((path / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def assert_contract(config: model_config_pb2.ModelConfig, contract: ModelContract) -> None:
    assert config.backend == "python"
    assert config.max_batch_size == contract.max_batch_size
    assert config.model_transaction_policy.decoupled == contract.decoupled
    for specs, tensors in ((contract.inputs, config.input), (contract.outputs, config.output)):
        assert [spec.name for spec in specs] == [tensor.name for tensor in tensors]
        for spec, tensor in zip(specs, tensors, strict=True):
            assert tuple(tensor.dims) == spec.dims
            assert model_config_pb2.DataType.Name(tensor.data_type) == f"TYPE_{spec.kind}"
            assert tensor.HasField("reshape") == spec.scalar
    for spec, tensor in zip(contract.inputs, config.input, strict=True):
        assert (tensor.optional, tensor.allow_ragged_batch) == (spec.optional, spec.ragged)


def test_whole_repository(tmp_path: Path) -> None:
    spec = make_spec()
    folder = render_repository(spec, tmp_path / "repository", RepositoryOptions(engines_dir=tmp_path / 'a "b" ä'))
    for name, contract in (("target", STEP), ("draft", STEP), ("spec_decode", SPEC_DECODE)):
        config = read(folder / name)
        assert config.name == name
        assert_contract(config, contract)
        assert (folder / name / "1" / "model.py").is_file()
    parameters = read(folder / "target").parameters
    assert parameters["engine_dir"].string_value == str(tmp_path / 'a "b" ä' / "target")
    assert parameters["threads"].string_value == "0"
    assert parameters["step_model_factory"].string_value == "pipeline.engine.embedded:load_step_model"
    stored = (folder / "spec_decode" / "1" / "deployment.json").read_text()
    assert DeploymentSpec.model_validate(json.loads(stored)) == spec


@pytest.mark.parametrize("kind", ["ngram", "none"])
def test_draft_without_a_model_is_not_rendered(tmp_path: Path, kind: str) -> None:
    render_repository(make_spec(), tmp_path)
    folder = render_repository(make_spec(draft={"kind": kind}), tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["spec_decode", "target"]


def test_missing_and_broken_templates(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"config\.pbtxt\.template is missing"):
        render_repository(make_spec(), tmp_path / "out", RepositoryOptions(templates=tmp_path))
    for name in ("target", "draft", "spec_decode"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").touch()
        (tmp_path / name / "config.pbtxt.template").write_text('name: "${nme}"')
    with pytest.raises(ServerError, match="nme"):
        render_repository(make_spec(), tmp_path / "out", RepositoryOptions(templates=tmp_path))


def test_validation_names_the_model() -> None:
    with pytest.raises(ServerError, match="model target is not valid: line 1"):
        validate_config('name: "target" decoupled: true', "target")
    with pytest.raises(ServerError, match="names model 'other'"):
        validate_config('name: "other"', "target")


def test_programs_are_thin() -> None:
    for program in TEMPLATES.glob("*/1/model.py"):
        assert len(program.read_text().splitlines()) < 40
