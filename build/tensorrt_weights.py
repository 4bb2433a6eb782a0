"""Where a TensorRT model's weights come from: a folder, a demo model, or the Hugging Face hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from pipeline.engine.weights import CheckpointReader
from pipeline.errors import EngineError
from pipeline.planning.model_shape import ModelShape, known_ids
from pipeline.planning.model_source import ModelSource
from pipeline.planning.placement import Placement
from pipeline.spec import DeploymentSpec, Role

EMBEDDING = "model.embed_tokens.weight"
HUB_TEXTS = ("*.json", "*.jinja")
HUB_WEIGHTS = ("model*.safetensors",)  # some repositories hold the same weights again in another layout
# Families whose conversion script takes the flags of tensorrt_commands.py: TensorRT-LLM 1.2, examples/models/core.
FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen",
    "Qwen3ForCausalLM": "qwen",
}


def shape_is_known(source: ModelSource) -> bool:
    """Whether a model's shape is known before anything is fetched."""
    return source.folder is not None or source.kind == "demo" or source.name in known_ids()


def check_shape(spec: DeploymentSpec, role: Role, shape: ModelShape) -> None:
    """Refuse what TensorRT-LLM cannot compile, or what speculation could not use.

    Raises:
        EngineError: naming the field, its value and the limit.
    """
    part = spec.step_model(role)
    if shape.architecture not in FAMILIES:
        raise EngineError(
            f"{role}.model = {part.model}: architecture {shape.architecture} is not supported; supported: "
            f"{', '.join(sorted(FAMILIES))}"
        )
    tp, pp = part.tensor_parallel, part.pipeline_parallel
    for reason in Placement(shape, part.weights, tp, pp, part.device_ids).indivisible():
        raise EngineError(f"{role}.{reason}")
    if role == "target" and spec.limits.max_seq_len > shape.max_positions:
        raise EngineError(
            f"limits.max_seq_len = {spec.limits.max_seq_len}: the target's context is {shape.max_positions} tokens"
        )
    if shape.sliding_window is not None and shape.sliding_window < spec.limits.max_seq_len:
        raise EngineError(
            f"{role}.model = {part.model}: sliding window of {shape.sliding_window} tokens; KV blocks that leave a "
            f"window cannot be reused; lower limits.max_seq_len = {spec.limits.max_seq_len} to it"
        )
    if shape.quantization is not None:
        raise EngineError(
            f"{role}.model = {part.model}: its weights are quantised already ({shape.quantization}); name the 16-bit "
            f"model and set {role}.weights"
        )


def hub_command(name: str, folder: str) -> str:
    """The download by hand. Llama repositories hold the weights a second time in original/."""
    return f"hf download {name} --exclude 'original/*' --local-dir {folder}"


def fetch_hub(name: str, weights: bool, report: Callable[[str], None]) -> Path:
    """Download a hub model, or its tokenizer alone; what is in the cache is not fetched again.

    Raises:
        EngineError: huggingface_hub is missing, or the hub refuses.
    """
    by_hand = f"download it (`{hub_command(name, 'FOLDER')}`) and name the folder instead"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise EngineError(f"model {name}: huggingface_hub is not installed; install it, or {by_hand}") from error
    report(f"fetching {name} from the Hugging Face hub (a large model takes a while; what is there is kept)")
    try:
        return Path(snapshot_download(name, allow_patterns=[*HUB_TEXTS, *(HUB_WEIGHTS if weights else ())]))
    except Exception as error:  # the hub's client raises many kinds, of its own and of the network
        reason = " ".join(str(error).split())[:300]
        raise EngineError(f"model {name} cannot be fetched ({type(error).__name__}: {reason}); {by_hand}") from error


def shares_embedding(folder: Path) -> bool:
    """Whether a draft's folder has no embedding: its target's is meant."""
    return EMBEDDING not in CheckpointReader(folder)


def complete_draft(folder: Path, target_folder: Path, destination: Path) -> Path:
    """A draft that shares its target's embedding, as a whole folder; `folder` itself where it is whole.

    Raises:
        EngineError: a weight file is missing or damaged, or the embeddings differ in width.
    """
    reader = CheckpointReader(folder)
    if EMBEDDING in reader:
        return folder
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor for path in reader.files for name, tensor in load_file(path).items()}
    embedding = CheckpointReader(target_folder)(EMBEDDING)
    config = json.loads((folder / "config.json").read_text())
    if tuple(embedding.shape) != (config["vocab_size"], config["hidden_size"]):
        raise EngineError(
            f"model folder {folder} has no embedding, and the target's is {tuple(embedding.shape)}; config.json says "
            f"{(config['vocab_size'], config['hidden_size'])}"
        )
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir(parents=True)
    # Converters take the dtype of the first tensor for all.
    dtype = next(iter(tensors.values())).dtype
    save_file(
        {**tensors, EMBEDDING: embedding.to(dtype).contiguous()},
        destination / "model.safetensors",
        metadata={"format": "pt"},
    )
    shutil.copy(folder / "config.json", destination / "config.json")
    return destination
