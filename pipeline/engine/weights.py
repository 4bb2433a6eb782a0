"""Weights: from a Hugging Face folder to the fused, reordered tensors that an engine folder stores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipeline.engine.manifest import sha256_file
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.rope import pair_rows
from pipeline.errors import EngineError

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
WEIGHTS_NAME = "weights.safetensors"


class CheckpointReader:
    """Tensors of a Hugging Face folder by name, from one or several safetensors files."""

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            try:
                names = json.loads(index.read_text())["weight_map"]
                self.files = sorted({folder / name for name in names.values()})
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise EngineError(f"model file {index} is damaged ({error})") from error
        else:
            self.files = [folder / "model.safetensors"]
        self._where: dict[str, Path] = {}
        for path in self.files:
            if not path.is_file():
                raise EngineError(f"model folder {folder}: {path.name} is missing{_pickles(folder)}")
            try:
                with safe_open(path, framework="pt") as stream:
                    self._where.update(dict.fromkeys(stream.keys(), path))
            except SafetensorError as error:
                raise EngineError(f"model file {path} is damaged or truncated ({error})") from error
        self.folder = folder

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __call__(self, name: str) -> Tensor:
        if name not in self._where:
            raise EngineError(f"model folder {self.folder}: tensor {name} is missing")
        with safe_open(self._where[name], framework="pt") as stream:
            tensor: Tensor = stream.get_tensor(name)
        return tensor


def _pickles(folder: Path) -> str:
    """What to say of weights that lie there in a form that is not read."""
    found = sorted(path.name for path in folder.glob("*") if path.suffix in _PICKLE_SUFFIXES)
    return f"; {found[0]} is a pickle, which may run code when it is read: convert it to safetensors" if found else ""


def source_hash(folder: Path, files: list[Path]) -> str:
    """SHA-256 over the configuration and weights of a model folder, each by its own hash."""
    digest = hashlib.sha256()
    for path in [folder / "config.json", *files]:
        digest.update(f"{path.name}:{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def fused_tensors(
    config: ModelConfig, read: CheckpointReader, embedding: Tensor | None, head_ids: list[int] | None
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of an engine by name.

    Args:
        embedding: the token embedding where the folder has none (a draft that shares its target's).
        head_ids: token ids kept in the LM head, or None for all.
    """
    name = "model.embed_tokens.weight"
    if name in read:
        embedding = read(name)
    if embedding is None:
        raise EngineError(f"model folder {read.folder}: tensor {name} is missing")
    if tuple(embedding.shape) != (config.vocab_size, config.hidden_size):
        raise EngineError(
            f"model folder {read.folder}: embedding is {tuple(embedding.shape)}, config.json says "
            f"{(config.vocab_size, config.hidden_size)}"
        )
    yield "embedding", embedding
    head = embedding if config.tie_word_embeddings else read("lm_head.weight")
    if head_ids is not None:
        yield "head_ids", torch.tensor(head_ids, dtype=torch.int64)
        yield "head", head[head_ids]
    elif head is not embedding:
        yield "head", head
    yield "norm", read("model.norm.weight")
    for i in range(config.num_layers):
        old, new = f"model.layers.{i}.", f"layers.{i}."
        attention, mlp = old + "self_attn.", old + "mlp."
        for kind in _kinds(read, attention + "q_proj"):
            q = pair_rows(read(f"{attention}q_proj.{kind}"), config.num_heads, config.head_dim)
            k = pair_rows(read(f"{attention}k_proj.{kind}"), config.num_kv_heads, config.head_dim)
            yield f"{new}qkv.{kind}", torch.cat((q, k, read(f"{attention}v_proj.{kind}")))
        if config.qk_norm:
            yield f"{new}q_norm", pair_rows(read(attention + "q_norm.weight"), 1, config.head_dim)
            yield f"{new}k_norm", pair_rows(read(attention + "k_norm.weight"), 1, config.head_dim)
        for kind in _kinds(read, attention + "o_proj"):
            yield f"{new}out.{kind}", read(f"{attention}o_proj.{kind}")
        for kind in _kinds(read, mlp + "gate_proj"):
            yield f"{new}gate_up.{kind}", torch.cat((read(f"{mlp}gate_proj.{kind}"), read(f"{mlp}up_proj.{kind}")))
        for kind in _kinds(read, mlp + "down_proj"):
            yield f"{new}down.{kind}", read(f"{mlp}down_proj.{kind}")
        yield f"{new}input_norm", read(old + "input_layernorm.weight")
        yield f"{new}mlp_norm", read(old + "post_attention_layernorm.weight")


def _kinds(read: CheckpointReader, projection: str) -> tuple[str, ...]:
    """Every projection has a weight; some families, and some configurations of the others, add a bias."""
    return ("weight", "bias") if f"{projection}.bias" in read else ("weight",)


def save_weights(folder: Path, tensors: Iterator[tuple[str, Tensor]], dtype: str) -> None:
    """Write an engine's weights; matrices in the spec's dtype, norms and biases in FP32."""
    target = torch.float16 if dtype == "float16" else torch.float32
    out = {}
    for name, tensor in tensors:
        if tensor.dtype == torch.int64:
            out[name] = tensor
        else:
            out[name] = tensor.to(target if tensor.dim() > 1 else torch.float32).contiguous()
    save_file(out, folder / WEIGHTS_NAME)


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Read an engine's weights.

    Raises:
        EngineError: the file is missing or damaged.
    """
    path = folder / WEIGHTS_NAME
    if not path.is_file():
        raise EngineError(f"engine file {path} is missing; run `make engines` again")
    try:
        with safe_open(path, framework="pt") as stream:
            return {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise EngineError(f"engine file {path} is damaged ({error}); run `make engines` again") from error
