"""Whether engines that were built fit the spec, the release and the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.doctor.check import Check
from pipeline.doctor.deployment import Deployment
from pipeline.doctor.finding import Finding
from pipeline.engine.fit import read_engine_manifest
from pipeline.engine.manifest import MANIFEST_NAME, Manifest, TensorRTFacts
from pipeline.engine.tensorrt_config import TensorRTEngineConfig
from pipeline.errors import EngineError
from pipeline.serving.tensorrt_parameters import engine_path
from pipeline.spec import Role

UNKNOWN = "unknown"  # of an engine from elsewhere


class Engines(Check):
    """Manifest against spec: model, dtype, lengths, version of TensorRT-LLM, kind of GPU."""

    name = "engines"

    def findings(self, deployment: Deployment) -> Iterator[Finding]:
        for role in deployment.models:
            spec = deployment.spec
            elsewhere = spec.step_model(role).engine_dir is not None
            if elsewhere:
                yield from self._elsewhere(deployment, role, engine_path(spec, role, spec.engines_dir))
            yield from self._built(deployment, role, imported=elsewhere)

    def _elsewhere(self, deployment: Deployment, role: Role, folder: Path) -> Iterator[Finding]:
        why = "it would be refused, or would answer wrongly, when it is served"
        try:
            config = TensorRTEngineConfig.read(folder)
        except EngineError as error:
            yield self.error(f"{role}.engine_dir: {error}", why, "correct the path, or leave it out to build one")
            return
        misfits = list(config.misfits(deployment.spec, role))
        for misfit in misfits:
            yield self.error(f"{role}.engine_dir {folder}: {misfit}", why, "compile it again, or change the spec")
        if not misfits:
            yield self.ok(f"{role}.engine_dir {folder} fits the spec")

    def _built(self, deployment: Deployment, role: Role, imported: bool) -> Iterator[Finding]:
        spec, folder = deployment.spec, deployment.spec.engine_dir(role)
        if not (folder / MANIFEST_NAME).is_file():
            yield self.not_checked(
                f"{role}: no engine in {folder}",
                "what an engine can do is fixed when it is built",
                "`make engines`" + (" reads the engine's configuration; then run doctor again" if imported else ""),
            )
            return
        try:
            manifest = read_engine_manifest(spec, role)
        except EngineError as error:
            yield self.error(str(error), "it would not be served", "`make engines`")
            return
        missing = [name for name in manifest.files if not (folder / name).is_file()]
        if missing:
            yield self.error(f"{role}: {folder} lacks {', '.join(missing)}", "it would not be served", "`make engines`")
        elif manifest.tensorrt is not None:
            yield from self._tensorrt(deployment, role, manifest, manifest.tensorrt)
        else:
            yield self.ok(f"{role}: built from this spec; K up to {manifest.limits.max_draft_len}")

    def _tensorrt(
        self, deployment: Deployment, role: Role, manifest: Manifest, facts: TensorRTFacts
    ) -> Iterator[Finding]:
        installed = deployment.machine.tensorrt_llm
        here = {gpu.architecture for gpu in deployment.machine.gpus}
        kinds, compiled = ", ".join(sorted(here)), facts.compute_capability
        if installed is not None and facts.tensorrt_llm != installed:
            yield self.error(
                f"{role}: compiled by TensorRT-LLM {facts.tensorrt_llm}, here is {installed}",
                "an engine runs with the version that compiled it only",
                "`make engines`, or the container of that version",
            )
        elif here and compiled not in {*here, UNKNOWN}:
            yield self.error(
                f"{role}: compiled for compute capability {compiled}, here is {kinds}",
                "an engine runs on the kind of GPU that it was compiled for only",
                "`make engines` on this machine",
            )
        elif not here or installed is None or compiled == UNKNOWN:
            yield self.not_checked(
                f"{role}: compiled by TensorRT-LLM {facts.tensorrt_llm} for compute capability "
                f"{compiled}; whether that is what runs here cannot be seen",
                "an engine runs with the version and on the kind of GPU that compiled it only",
                "run doctor on the GPU machine, inside the container",
            )
        else:
            yield self.ok(f"{role}: for this GPU and TensorRT-LLM; K up to {manifest.limits.max_draft_len}")
