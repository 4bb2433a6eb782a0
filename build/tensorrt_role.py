"""Builds one TensorRT engine, step by step: what is done and unchanged is never done again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from embedded import TOKENIZER_FILES
from file_hashes import FileHashes, words_hash
from tensorrt_commands import (
    EnginePaths,
    build_arguments,
    build_command,
    convert_arguments,
    convert_command,
    convert_script,
    without_workers,
)
from tensorrt_install import FlagCheck, TensorRTInstall
from tensorrt_manifest import make_manifest
from tensorrt_program import run_program
from tensorrt_weights import complete_draft, shares_embedding

from pipeline.engine.manifest import Manifest, TensorRTFacts
from pipeline.engine.tensorrt_config import TensorRTEngineConfig
from pipeline.engine.weights import CheckpointReader
from pipeline.errors import EngineError
from pipeline.planning.model_shape import ModelShape
from pipeline.serving.tensorrt_parameters import ENGINE_FOLDER
from pipeline.spec import DeploymentSpec, Role
from pipeline.text.tokenizer import TOKENIZER_NAME

STAMP_NAME = "specdec.json"
# Bytes of a checkpoint and of an engine in terms of 16-bit weights.
SIZE = {"float16": 1.0, "fp8": 0.55, "int8": 0.55, "int4": 0.35}


class RoleBuild:
    """One engine of a deployment.

    Args:
        folder: Hugging Face folder of the model.
        target_folder: of the target: its tokenizer, and the embedding of a draft that shares it.
        report, progress: told what has happened, and what is happening.
    """

    def __init__(
        self,
        spec: DeploymentSpec,
        role: Role,
        folder: Path,
        target_folder: Path,
        install: TensorRTInstall,
        hashes: FileHashes,
        report: Callable[[str], None],
        progress: Callable[[str], None],
    ) -> None:
        self._spec, self._role, self._install, self._hashes = spec, role, install, hashes
        self._folder, self._target_folder = folder, target_folder
        self._report, self._progress = report, progress
        self._shape = ModelShape.read(folder)
        self._convert_arguments = convert_arguments(spec, role)
        self._build_arguments = build_arguments(spec, role, self._shape)
        self._destination = spec.engine_dir(role)
        self._paths = EnginePaths.of(spec, role, folder, self._destination / ENGINE_FOLDER)
        self._tokenizer_files = tokenizer_files(folder, target_folder)
        self._source = self._source_hash()
        # What a step depends on, and nothing else: a new port compiles nothing.
        convert, compile_ = (without_workers(words) for words in (self._convert_arguments, self._build_arguments))
        self._checkpoint_key = words_hash(self._source, install.version, self._script.name, *convert)
        gpu = install.gpu.compute_capability
        self._engine_key = words_hash(self._checkpoint_key, install.tensorrt, gpu, *compile_)
        self._converted, self._compiled = self._find_checkpoint(), self._find_engine()

    @property
    def _script(self) -> Path:
        return convert_script(self._spec, self._role, self._shape.architecture)

    def check(self, flags: FlagCheck) -> None:
        """See that what is left to do can be done, before any of it is started.

        Raises:
            EngineError: a script is missing, a flag is not known, or the disk is too full.
        """
        if self._compiled is not None:
            return
        if not self._converted:
            if not self._script.is_file():
                raise EngineError(
                    f"tensorrt_llm.examples_dir = {self._spec.tensorrt_llm.examples_dir}: {self._script} does not "
                    f"exist; name the examples folder of TensorRT-LLM {self._install.version}"
                )
            self._progress(f"{self._role}: asking {self._script.name} which flags it knows")
            command = convert_command("", self._script, self._convert_arguments, self._paths)
            flags.check([self._install.python, str(self._script)], command[2:])
        self._progress(f"{self._role}: asking {self._install.program.name} which flags it knows")
        flags.check([str(self._install.program)], build_command("", self._build_arguments, self._paths)[1:])
        self._check_disk()

    def run(self) -> None:
        """Do what is left.

        Raises:
            EngineError: a step failed; what was finished before it is kept.
        """
        if self._compiled is not None:
            old = self._compiled
            fresh = self._manifest(self._destination, old.engine_path(self._destination))
            if old != fresh:
                fresh.write(self._destination)
                self._report(f"{self._role}: up to date; manifest written again for the changed spec")
            else:
                self._report(f"{self._role}: up to date")
            return
        if self._converted:
            self._report(f"{self._role}: checkpoint is up to date")
        else:
            self._convert()
        self._compile()

    def _convert(self) -> None:
        final = self._paths.checkpoint
        partial = final.with_name(f".{final.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        source = self._folder
        if self._role == "draft":
            source = complete_draft(source, self._target_folder, self._spec.engines_dir / "sources" / "draft")
        paths = replace(self._paths, source=source, checkpoint=partial)
        command = convert_command(self._install.python, self._script, self._convert_arguments, paths)
        seconds = self._program("converting", command, "convert")
        ranks = self._spec.step_model(self._role).world_size
        for name in ("config.json", *(f"rank{rank}.safetensors" for rank in range(ranks))):
            if not (partial / name).is_file():
                raise EngineError(f"{self._role}: {self._script.name} ended well but wrote no {name} in {partial}")
        (partial / STAMP_NAME).write_text(json.dumps({"inputs": self._checkpoint_key, "command": command}, indent=1))
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        self._report(f"{self._role}: checkpoint converted in {seconds:.0f} s: {final}")

    def _compile(self) -> None:
        partial = self._destination.with_name(f".{self._role}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        engine = partial / ENGINE_FOLDER
        engine.mkdir(parents=True)
        command = build_command(str(self._install.program), self._build_arguments, replace(self._paths, engine=engine))
        seconds = self._program("compiling", command, "build")
        for path in (self._folder / "config.json", *self._tokenizer_files):
            shutil.copy(path, partial / path.name)
        self._manifest(partial, engine).write(partial)
        shutil.rmtree(self._destination, ignore_errors=True)
        partial.rename(self._destination)
        self._hashes.moved(partial, self._destination)
        self._report(f"{self._role}: engine compiled in {seconds:.0f} s: {self._destination}")

    def _program(self, doing: str, command: list[str], log: str) -> float:
        path = self._spec.engines_dir / "logs" / f"{self._role}.{log}.log"
        return run_program(f"{self._role}: {doing}", command, path, self._progress)

    def _manifest(self, folder: Path, engine: Path) -> Manifest:
        config = TensorRTEngineConfig.read(engine)
        config.require_fit(self._spec, self._role, engine)
        facts = TensorRTFacts(
            engine_path=ENGINE_FOLDER,
            tensorrt_llm=config.version,
            tensorrt=self._install.tensorrt,
            compute_capability=self._install.gpu.compute_capability,
            tensor_parallel=config.tensor_parallel,
            pipeline_parallel=config.pipeline_parallel,
            max_num_tokens=config.max_num_tokens,
            quantization=config.quantization,
            inputs_sha256=self._engine_key,
            build_arguments=self._build_arguments,
        )
        eos = self._shape.eos_ids[0] if self._shape.eos_ids else None
        return make_manifest(
            self._spec,
            self._role,
            folder,
            engine,
            config,
            facts,
            self._source,
            self._install.gpu.name,
            self._hashes,
            eos,
        )

    def _source_hash(self) -> str:
        weights = CheckpointReader(self._folder).files
        source = self._hashes.files([self._folder / "config.json", *weights, *self._tokenizer_files])
        if self._role == "draft" and shares_embedding(self._folder):
            source += "+" + self._hashes.files(CheckpointReader(self._target_folder).files)
        return source

    def _find_checkpoint(self) -> bool:
        try:
            return bool(json.loads((self._paths.checkpoint / STAMP_NAME).read_text())["inputs"] == self._checkpoint_key)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _find_engine(self) -> Manifest | None:
        try:
            manifest = Manifest.read(self._destination)
        except EngineError:
            return None
        if manifest.tensorrt is None or manifest.tensorrt.inputs_sha256 != self._engine_key:
            return None
        for name, expected in manifest.files.items():
            path = self._destination / name
            if not path.is_file() or self._hashes.file(path) != expected:
                self._report(f"{self._role}: {path} is missing or damaged; built again")
                return None
        return manifest

    def _check_disk(self) -> None:
        needed = 2 * self._shape.parameters * SIZE[self._spec.step_model(self._role).weights]
        needed *= 1 if self._converted else 2
        place = self._spec.engines_dir
        place.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(place).free
        if free < needed:
            raise EngineError(
                f"{place} has {free / 1e9:.0f} GB free; the {self._role}'s checkpoint and engine need about "
                f"{needed / 1e9:.0f} GB"
            )


def tokenizer_files(folder: Path, target_folder: Path) -> list[Path]:
    """A draft without a tokenizer uses its target's."""
    texts = folder if (folder / TOKENIZER_NAME).is_file() else target_folder
    return [texts / name for name in TOKENIZER_FILES if (texts / name).is_file()]
