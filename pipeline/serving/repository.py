"""Renders a Triton model repository for a deployment spec."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from string import Template

from google.protobuf import text_format  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2

from pipeline.errors import ServerError
from pipeline.serving.contract import (
    DRAFT_MODEL,
    SPEC_DECODE,
    SPEC_DECODE_MODEL,
    STEP,
    TARGET_MODEL,
    ModelContract,
    TensorSpec,
)
from pipeline.serving.orchestrator_server import DEFAULT_ORCHESTRATOR_FACTORY, SPEC_FILE
from pipeline.serving.step_server import DEFAULT_STEP_MODEL_FACTORY
from pipeline.serving.tensorrt_contract import tensorrt_contract
from pipeline.serving.tensorrt_parameters import tensorrt_parameters
from pipeline.spec import ROOT, DeploymentSpec

TEMPLATES = ROOT / "triton_repo"
CONFIG_NAME = "config.pbtxt"
PROGRAM_NAME = "model.py"
TENSORRT_TEMPLATE = "tensorrt_llm.pbtxt.template"


@dataclass(frozen=True)
class RepositoryOptions:
    """What a rendering may replace.

    Attributes:
        engines_dir: holds target/ and draft/; None takes the spec's own.
        step_model_factory: "module:function", called with (engine folder, threads), gives a StepModel.
        orchestrator_factory: "module:function", called with (spec, engines folder, target, draft), gives a
            TextGenerator.
        templates: holds the config templates and model.py files.
    """

    engines_dir: Path | None = None
    step_model_factory: str = DEFAULT_STEP_MODEL_FACTORY
    orchestrator_factory: str = DEFAULT_ORCHESTRATOR_FACTORY
    templates: Path = TEMPLATES


def model_names(spec: DeploymentSpec) -> tuple[str, ...]:
    """The Triton models of a deployment; a draft that is no model has none."""
    return (*spec.model_roles, SPEC_DECODE_MODEL)


def render_repository(spec: DeploymentSpec, destination: Path, options: RepositoryOptions | None = None) -> Path:
    """Write the model repository of `spec` into `destination`, replacing one that was rendered before.

    Returns:
        `destination`, absolute.

    Raises:
        ServerError: a template is missing, or what was rendered is not a Triton model configuration.
    """
    options = options or RepositoryOptions()
    destination = destination.resolve()
    engines = (options.engines_dir or spec.engines_dir).resolve()
    for name in (TARGET_MODEL, DRAFT_MODEL, SPEC_DECODE_MODEL):
        shutil.rmtree(destination / name, ignore_errors=True)
    on_tensorrt = spec.engine == "tensorrt_llm"
    parameters = {
        "engines_dir": str(engines),
        "orchestrator_factory": options.orchestrator_factory,
    }
    _render_program(SPEC_DECODE_MODEL, SPEC_DECODE, parameters, options.templates, destination)
    for role in spec.model_roles:
        if on_tensorrt:
            contract = tensorrt_contract(spec.limits.max_requests)
            template = options.templates / TENSORRT_TEMPLATE
            _render_config(role, contract, tensorrt_parameters(spec, role, engines), template, destination)
        else:
            parameters = {
                "engine_dir": str(engines / role),
                "threads": str(spec.step_model(role).threads),
                "step_model_factory": options.step_model_factory,
            }
            _render_program(role, STEP, parameters, options.templates, destination)
    (destination / SPEC_DECODE_MODEL / "1" / SPEC_FILE).write_text(spec.model_dump_json(indent=2) + "\n")
    return destination


def _render_program(
    name: str, contract: ModelContract, parameters: dict[str, str], templates: Path, destination: Path
) -> None:
    """A model of the Python backend: its configuration and its model.py."""
    program = templates / name / "1" / PROGRAM_NAME
    _render_config(name, contract, parameters, templates / name / f"{CONFIG_NAME}.template", destination)
    _require(program)
    shutil.copyfile(program, destination / name / "1" / PROGRAM_NAME)


def _render_config(
    name: str, contract: ModelContract, parameters: dict[str, str], template: Path, destination: Path
) -> None:
    """config.pbtxt and the version folder, which may be empty."""
    _require(template)
    values = {
        "name": name,
        "max_batch_size": str(contract.max_batch_size),
        "decoupled": str(contract.decoupled).lower(),
        "inputs": ",\n".join(_tensor(spec) for spec in contract.inputs),
        "outputs": ",\n".join(_tensor(spec) for spec in contract.outputs),
        "parameters": "\n".join(_parameter(key, value) for key, value in parameters.items()),
    }
    try:
        text = Template(template.read_text()).substitute(values)
    except (KeyError, ValueError) as error:
        raise ServerError(f"{template}: placeholder {error} is not known") from error
    validate_config(text, name)
    (destination / name / "1").mkdir(parents=True)
    (destination / name / CONFIG_NAME).write_text(text)


def _require(path: Path) -> None:
    if not path.is_file():
        raise ServerError(f"{path} is missing; the model repository is rendered from a source checkout")


def validate_config(text: str, name: str) -> None:
    """Parse a config.pbtxt as Triton does.

    Raises:
        ServerError: it is not a ModelConfig, or is another model's.
    """
    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        raise ServerError(f"config.pbtxt of model {name} is not valid: line {error}") from error
    if config.name != name:
        raise ServerError(f"config.pbtxt in folder {name} names model {config.name!r}")


def _tensor(spec: TensorSpec) -> str:
    fields = [f'name: "{spec.name}"', f"data_type: TYPE_{spec.kind}", f"dims: [ {', '.join(map(str, spec.dims))} ]"]
    if spec.scalar:
        fields.append("reshape: { shape: [ ] }")
    if spec.optional:
        fields.append("optional: true")
    if spec.ragged:
        fields.append("allow_ragged_batch: true")
    return "  { " + " ".join(fields) + " }"


def _parameter(key: str, value: str) -> str:
    # A JSON string is a valid protobuf text string.
    return f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(value, ensure_ascii=False)} }} }}'
