"""Builds the TensorRT engines of a deployment; everything that can be refused is refused first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from file_hashes import FileHashes
from tensorrt_commands import (
    EnginePaths,
    build_arguments,
    build_command,
    convert_arguments,
    convert_command,
    convert_script,
    shown,
)
from tensorrt_elsewhere import write_elsewhere
from tensorrt_install import PROGRAM, FlagCheck, find_tensorrt, require_gpu_support
from tensorrt_role import RoleBuild
from tensorrt_weights import check_shape, fetch_hub, hub_command, shape_is_known, shares_embedding

from pipeline.engine.tensorrt_config import TensorRTEngineConfig
from pipeline.planning.model_shape import ModelShape
from pipeline.planning.model_source import DEMO_PREFIX, ModelSource
from pipeline.serving.tensorrt_parameters import engine_path
from pipeline.spec import DeploymentSpec, Role
from pipeline.text.compare import require_equal_tokenizers
from pipeline.text.tokenizer import TOKENIZER_NAME

Report = Callable[[str], None]
Fetch = Callable[[str], Path]


def print_commands(spec: DeploymentSpec, report: Report) -> None:
    """Print every command that building `spec` runs; needs neither TensorRT-LLM, nor weights, nor a GPU.

    Raises:
        EngineError: what can be seen to fail already.
    """
    for role in spec.model_roles:
        part = spec.step_model(role)
        if part.engine_dir is not None:
            report(f"# {role}: engine from {part.engine_dir}; nothing is built")
            continue
        model = ModelSource.find(str(part.model))
        shape = model.shape()
        check_shape(spec, role, shape)
        weights = _print_weights(spec, role, model, report)
        paths = EnginePaths.of(spec, role, weights, engine_path(spec, role, spec.engines_dir))
        script = convert_script(spec, role, shape.architecture)
        report(f"# {role}: checkpoint")
        report(shown(convert_command("python3", script, convert_arguments(spec, role), paths)))
        report(f"# {role}: engine")
        report(shown(build_command(PROGRAM, build_arguments(spec, role, shape), paths)))


def build_engines(spec: DeploymentSpec, fetch_demo: Fetch, report: Report, progress: Report) -> None:
    """Build what is missing or out of date; accept engines from elsewhere.

    Args:
        fetch_demo: gives the folder of a demo model.
        report: told what has happened, a line at a time; progress: what is happening now.

    Raises:
        EngineError: what is wrong and what to do, before any long work where it can be known before.
    """
    built = [role for role in spec.model_roles if spec.step_model(role).engine_dir is None]
    for role in spec.model_roles:
        if role not in built:
            folder = engine_path(spec, role, spec.engines_dir)
            TensorRTEngineConfig.read(folder).require_fit(spec, role, folder)
        elif shape_is_known(model := ModelSource.find(str(spec.step_model(role).model))):
            check_shape(spec, role, model.shape())
    install = find_tensorrt(spec.tensorrt_llm.container) if built else None
    if install is not None:
        require_gpu_support(spec, built, install.gpu)
    hashes = FileHashes(spec.engines_dir / "hashes.json", progress)
    folders = {role: _texts_or_weights(spec, role, role in built, fetch_demo, report) for role in spec.model_roles}
    if "draft" in folders:
        require_equal_tokenizers(folders["target"], folders["draft"])
        report("tokenizers of target and draft are equal")
    builds: list[RoleBuild] = []
    for role in built:
        assert install is not None
        check_shape(spec, role, ModelShape.read(folders[role]))
        builds.append(RoleBuild(spec, role, folders[role], folders["target"], install, hashes, report, progress))
    flags = FlagCheck()
    for build in builds:
        build.check(flags)
    for role in spec.model_roles:
        if role not in built:
            engine = engine_path(spec, role, spec.engines_dir)
            write_elsewhere(spec, role, engine, folders[role], hashes)
            report(f"{role}: engine from {engine} accepted")
    for build in builds:
        build.run()


def _print_weights(spec: DeploymentSpec, role: Role, model: ModelSource, report: Report) -> Path:
    folder = model.folder
    if folder is not None and model.kind == "folder" and role == "draft" and shares_embedding(folder):
        joined = spec.engines_dir / "sources" / role
        report(f"# {role}: weights of {folder}, joined with its target's embedding in {joined}")
        return joined
    if folder is not None and model.kind != "hub":  # the hub's cache may hold the configuration alone
        report(f"# {role}: weights in {folder}")
        return folder
    folder = spec.engines_dir / "weights" / role
    if model.kind == "demo":
        report(f"# {role}: the demo model\npython build/demo_model.py {folder}")
    else:
        report(f"# {role}: weights (the build itself keeps them in the hub's cache)")
        report(hub_command(model.name, str(folder)))
    return folder


def _texts_or_weights(spec: DeploymentSpec, role: Role, weights: bool, fetch_demo: Fetch, report: Report) -> Path:
    """The model's folder; of an engine from elsewhere, the tokenizer's."""
    if not weights and (engine_path(spec, role, spec.engines_dir) / TOKENIZER_NAME).is_file():
        return engine_path(spec, role, spec.engines_dir)
    model = ModelSource.find(str(spec.step_model(role).model))
    if model.kind == "demo":
        return fetch_demo(model.name.removeprefix(DEMO_PREFIX))
    if model.kind == "folder" and model.folder is not None:
        return model.folder
    return fetch_hub(model.name, weights, report)
