"""Whether a built engine is the one that a deployment spec means."""

from __future__ import annotations

from pipeline.engine.manifest import Manifest
from pipeline.errors import EngineError
from pipeline.spec import DeploymentSpec, Role
from pipeline.tensorrt_spec import kv_blocks


def read_engine_manifest(spec: DeploymentSpec, role: Role) -> Manifest:
    """The manifest of a spec's engine.

    Raises:
        EngineError: there is none, or the spec has changed since the engine was built; names what differs.
    """
    manifest = Manifest.read(spec.engine_dir(role))
    part = spec.step_model(role)
    wanted: dict[str, tuple[object, object]] = {
        f"{role}.model": (manifest.model, part.model),
        "engine": (manifest.engine, spec.engine),
        "dtype": (manifest.dtype, spec.dtype),
        "tokens_per_block": (manifest.limits.tokens_per_block, spec.tokens_per_block),
        f"{role}.kv_blocks": (
            manifest.limits.kv_blocks,
            part.kv_blocks if spec.engine == "embedded" else kv_blocks(spec, role),
        ),
        "limits.max_requests": (manifest.limits.max_requests, spec.limits.max_requests),
    }
    if spec.engine == "embedded" and spec.device != "auto":
        wanted["device"] = (manifest.device or "cpu", spec.device)
    if manifest.tensorrt is not None:
        wanted[f"{role}.tensor_parallel"] = (manifest.tensorrt.tensor_parallel, part.tensor_parallel)
        wanted[f"{role}.pipeline_parallel"] = (manifest.tensorrt.pipeline_parallel, part.pipeline_parallel)
    if role == "target":
        wanted["limits.max_draft_len"] = (manifest.limits.max_draft_len, spec.limits.max_draft_len)
        wanted["limits.max_seq_len"] = (manifest.limits.max_seq_len, spec.limits.max_seq_len)
    changed = [f"{name} is {new!r}, was {old!r}" for name, (old, new) in wanted.items() if old != new]
    if changed:
        raise EngineError(
            f"{role} engine of {spec.name} was built from another spec ({'; '.join(changed)}); run `make engines` again"
        )
    return manifest
