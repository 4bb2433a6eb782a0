"""The manifest of a TensorRT engine: what the rest of the system needs to know without a GPU."""

from __future__ import annotations

from pathlib import Path

from file_hashes import FileHashes

from pipeline import __version__
from pipeline.engine.manifest import (
    MANIFEST_NAME,
    MANIFEST_VERSION,
    CostTable,
    Limits,
    Manifest,
    TensorRTFacts,
)
from pipeline.engine.tensorrt_capabilities import TENSORRT_LLM_CAPABILITIES
from pipeline.engine.tensorrt_config import CONFIG_NAME, TensorRTEngineConfig, engine_name
from pipeline.planning.constants import DEFAULT
from pipeline.planning.gpus import find_gpu, recognise
from pipeline.spec import DeploymentSpec, Role
from pipeline.tensorrt_spec import kv_blocks
from pipeline.text.tokenizer import Tokenizer

USUAL_GPU = "H100-SXM"  # whose bandwidth estimates a cost on a GPU that is not in the table
COST_CONTEXT = 256
FLAT_UP_TO = 64  # new tokens that a pass takes at the price of one, while it waits for memory


def make_manifest(
    spec: DeploymentSpec,
    role: Role,
    folder: Path,
    engine: Path,
    config: TensorRTEngineConfig,
    facts: TensorRTFacts,
    source_sha256: str,
    gpu_name: str,
    hashes: FileHashes,
    end_id: int | None,
) -> Manifest:
    """Describe an engine.

    Args:
        folder: where the manifest will lie, with the tokenizer.
        engine: the compiled engine: inside `folder`, or elsewhere.
        gpu_name: as the driver says; "" where it is not known.
        end_id: of config.json, where the tokenizer names none.
    """
    tokenizer = Tokenizer.load(folder)
    own = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name != MANIFEST_NAME]
    files = {path.name: hashes.file(path) for path in own}
    names = (CONFIG_NAME, *map(engine_name, range(config.world_size)))
    files |= {f"{facts.engine_path}/{name}": hashes.file(engine / name) for name in names}
    limits = Limits(
        max_seq_len=min(spec.limits.max_seq_len, config.max_seq_len),
        max_draft_len=spec.limits.max_draft_len if role == "target" else 0,
        max_requests=spec.limits.max_requests,
        kv_blocks=kv_blocks(spec, role),
        tokens_per_block=config.tokens_per_block,
    )
    return Manifest(
        version=MANIFEST_VERSION,
        role=role,
        engine="tensorrt_llm",
        model=str(spec.step_model(role).model),
        source_sha256=source_sha256,
        dtype=spec.dtype,
        vocab_size=tokenizer.vocab_size,
        padded_vocab_size=config.padded_vocab_size,
        engine_vocab_size=config.vocab_size,
        end_id=tokenizer.eos_id if tokenizer.eos_id is not None else end_id,
        files=files,
        limits=limits,
        capabilities=TENSORRT_LLM_CAPABILITIES,
        cost=estimated_cost((engine / engine_name(0)).stat().st_size, config, gpu_name),
        built_with={"specdec": __version__, "tensorrt_llm": facts.tensorrt_llm, "tensorrt": facts.tensorrt},
        tensorrt=facts,
    )


def estimated_cost(rank_bytes: int, config: TensorRTEngineConfig, gpu_name: str) -> CostTable:
    """Seconds of a pass from the bytes that it reads: flat in the number of new tokens while memory is what limits.

    A start only: the controller corrects it by what rounds take.
    """
    gpu = recognise(gpu_name, 0.0) or find_gpu(USUAL_GPU)
    seconds = rank_bytes / (gpu.bandwidth * DEFAULT.bandwidth_share) + config.num_layers * DEFAULT.layer_s
    return CostTable(
        context_tokens=min(COST_CONTEXT, config.max_seq_len),
        seconds_by_tokens={1: seconds, FLAT_UP_TO: seconds},
        measured=False,
    )
