"""Accepts engines that were compiled elsewhere (`engine_dir`): nothing is built, their config.json is read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from file_hashes import FileHashes
from tensorrt_manifest import make_manifest
from tensorrt_role import tokenizer_files

from pipeline.engine.manifest import TensorRTFacts
from pipeline.engine.tensorrt_config import TensorRTEngineConfig
from pipeline.spec import DeploymentSpec, Role


def write_elsewhere(spec: DeploymentSpec, role: Role, engine: Path, texts: Path, hashes: FileHashes) -> None:
    """Describe an engine that was compiled elsewhere: manifest and tokenizer beside it in engines/<name>/<role>.

    Args:
        engine: holds config.json and rank*.engine.
        texts: holds the tokenizer.

    Raises:
        EngineError: the engine or the tokenizer is incomplete, or does not fit the spec.
    """
    config = TensorRTEngineConfig.read(engine)
    config.require_fit(spec, role, engine)
    destination = spec.engine_dir(role)
    partial = destination.with_name(f".{role}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        for path in tokenizer_files(texts, texts):
            shutil.copy(path, partial / path.name)
        facts = TensorRTFacts(
            engine_path=str(engine.resolve()),
            tensorrt_llm=config.version,
            tensorrt="unknown",
            compute_capability="unknown",
            tensor_parallel=config.tensor_parallel,
            pipeline_parallel=config.pipeline_parallel,
            max_num_tokens=config.max_num_tokens,
            quantization=config.quantization,
            inputs_sha256="",
            build_arguments=(),
        )
        source = hashes.file(engine / "config.json")
        make_manifest(spec, role, partial, engine, config, facts, source, "", hashes, None).write(partial)
        shutil.rmtree(destination, ignore_errors=True)
        partial.rename(destination)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
