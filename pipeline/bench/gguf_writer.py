"""A Hugging Face folder of the Llama family -> one GGUF file with 16-bit weights, for llama.cpp.

The demo target was published as a 4-bit GGUF; a comparison needs the very weights that our engines hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from pipeline.errors import SpecError
from pipeline.gguf_names import GLOBAL_NAMES, LAYER_NAMES

Array = NDArray[Any]

EMBEDDING = "model.embed_tokens.weight"
SPLITTER = "smollm"  # llama.cpp's name of the splitting rule: digits alone, then GPT-2's


def write_gguf(model: Path, tokenizer: Path, destination: Path, embedding: Path | None = None) -> None:
    """Write the file; a half-written one never stands at its place.

    Args:
        model: folder with config.json and model.safetensors.
        tokenizer: folder with tokenizer.json, a byte-level BPE that splits digits, and tokenizer_config.json.
        destination: the GGUF file.
        embedding: folder that has the token embedding where `model` has none (a draft that shares its target's).

    Raises:
        SpecError: a model of another family, scaled RoPE, or a tensor that a llama model does not have.
    """
    config = json.loads((model / "config.json").read_text())
    if config.get("model_type") != "llama":
        raise SpecError(f"{model}: model_type = {config.get('model_type')!r}: only llama is written as GGUF")
    for scaling in (config.get("rope_parameters"), config.get("rope_scaling")):
        kind = (scaling or {}).get("rope_type", "default")
        if kind != "default":
            raise SpecError(f"{model}: rope_type = {kind!r}: only plain RoPE is written as GGUF")
    destination.parent.mkdir(parents=True, exist_ok=True)
    scratch = destination.with_suffix(".part")
    writer = gguf.GGUFWriter(scratch, "llama")
    _write_config(writer, config)
    _write_tokenizer(writer, tokenizer, config)
    names = set()
    for folder in (model, embedding):
        if folder is None:
            continue
        for name, weights in _tensors(folder):
            if name not in names and (folder is model or name == EMBEDDING):
                names.add(name)
                writer.add_tensor(gguf_name(name), _converted(name, weights, config))
    if EMBEDDING not in names:
        raise SpecError(f"{model} has no token embedding; name the folder that has it")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scratch.replace(destination)


def gguf_name(name: str) -> str:
    """The GGUF name of a tensor: model.layers.3.self_attn.q_proj.weight -> blk.3.attn_q.weight.

    Raises:
        SpecError: a tensor that a llama model does not have.
    """
    stem, _, kind = name.rpartition(".")
    if kind == "weight":
        if stem in GLOBAL_NAMES:
            return f"{GLOBAL_NAMES[stem]}.weight"
        layer, _, rest = stem.removeprefix("model.layers.").partition(".")
        if layer.isdecimal() and rest in LAYER_NAMES:
            return f"blk.{layer}.{LAYER_NAMES[rest]}.weight"
    raise SpecError(f"tensor {name} is not part of a llama model")


def permute_rope_rows(weights: Array, heads: int) -> Array:
    """llama.cpp's interleaving of RoPE pairs: per head [2, d/2] rows -> [d/2, 2] rows.

    Args:
        weights: [heads * d, hidden], a query or key projection.
        heads: query or key heads.
    """
    rows, hidden = weights.shape
    halves = weights.reshape(heads, 2, rows // heads // 2, hidden)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, hidden))


def _tensors(folder: Path) -> Iterator[tuple[str, Array]]:
    with safe_open(folder / "model.safetensors", framework="np") as file:
        for name in file.keys():  # noqa: SIM118 - the library's object is no mapping
            yield name, file.get_tensor(name)


def _converted(name: str, weights: Array, config: dict[str, Any]) -> Array:
    if weights.ndim == 1:
        return weights.astype(np.float32)  # llama.cpp wants its norms so
    if name.endswith("q_proj.weight"):
        weights = permute_rope_rows(weights, config["num_attention_heads"])
    elif name.endswith("k_proj.weight"):
        weights = permute_rope_rows(weights, config["num_key_value_heads"])
    return weights.astype(np.float16)


def _write_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope.get("rope_theta") or config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _write_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    special = {entry["id"] for entry in data["added_tokens"] if entry["special"]}
    by_id = {number: token for token, number in data["model"]["vocab"].items()}
    by_id |= {entry["id"]: entry["content"] for entry in data["added_tokens"]}
    ids = range(config["vocab_size"])
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(SPLITTER)
    writer.add_token_list([by_id.get(number, f"[PAD{number}]") for number in ids])
    writer.add_token_types([control if number in special else normal for number in ids])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    if config.get("pad_token_id") is not None:
        writer.add_pad_token_id(config["pad_token_id"])
    named = json.loads((folder / "tokenizer_config.json").read_text())
    unknown = next((number for number, token in by_id.items() if token == named.get("unk_token")), None)
    if unknown is not None:
        writer.add_unk_token_id(unknown)
    if named.get("chat_template"):
        writer.add_chat_template(named["chat_template"])
    writer.add_add_bos_token(False)
