"""A llama GGUF with a byte-level BPE vocabulary -> a Hugging Face folder with FP16 weights.

transformers can read such a file, but refuses to save what it read, needs ten times as long, and loses the
pre-tokenizer that splits numbers into digits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from pipeline.errors import EngineError
from pipeline.gguf_names import GLOBAL_NAMES, LAYER_NAMES

Array = NDArray[Any]

# From llama.cpp's names to Hugging Face's.
_GLOBAL = {theirs: ours for ours, theirs in GLOBAL_NAMES.items()}
_LAYER = {theirs: ours for ours, theirs in LAYER_NAMES.items()}
CONTROL_TOKEN = 3  # GGUF's token type of special tokens
SMOLLM_PRE_TOKENIZER = "smollm"  # the only splitting rule written here


class GgufFile(gguf.GGUFReader):  # type: ignore[misc]
    """gguf's reader over a plain array view: slicing np.memmap itself costs 2 s on 100,000 short strings."""

    @property
    def data(self) -> Array:
        return self._data

    @data.setter
    def data(self, mapped: Array) -> None:
        self._data = np.asarray(mapped)

    def value(self, key: str) -> Any:
        """Metadata by its full name.

        Raises:
            EngineError: the file has no such key.
        """
        field = self.get_field(key)
        if field is None:
            raise EngineError(f"GGUF metadata {key} is missing")
        return field.contents()


def convert(source: Path, folder: Path, on_tensor: Callable[[int, int], None] | None = None) -> None:
    """Write config, weights and tokenizer into an existing folder.

    Args:
        source: the GGUF file.
        folder: where the Hugging Face files go.
        on_tensor: called with (tensors done, tensors in all).

    Raises:
        EngineError: not a llama GGUF, or one with parts that are not known here.
    """
    try:
        reader = GgufFile(source)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise EngineError(f"{source} is not a readable GGUF file: {error}") from error
    config = _config(reader)
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    _write_tokenizer(reader, folder, context=config["max_position_embeddings"])

    tensors: dict[str, Array] = {}
    for done, tensor in enumerate(reader.tensors, start=1):
        weights = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
        kind = tensor.name.split(".")[-2]
        if kind in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if kind == "attn_q" else "num_key_value_heads"]
            weights = unpermute_rope_rows(weights, heads)
        tensors[hf_name(tensor.name)] = weights
        if on_tensor is not None:
            on_tensor(done, len(reader.tensors))
    weights_path = folder / "model.safetensors"
    save_file(tensors, weights_path, metadata={"format": "pt"})
    weights_path.chmod((folder / "config.json").stat().st_mode)  # save_file makes it readable by its owner alone


def unpermute_rope_rows(weights: Array, heads: int) -> Array:
    """Undo llama.cpp's interleaving of RoPE pairs: per head [d/2, 2] rows -> [2, d/2] rows.

    Args:
        weights: [heads * d, hidden], a query or key projection.
        heads: query or key heads.
    """
    rows, hidden = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, hidden)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, hidden))


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor: blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight.

    Raises:
        EngineError: a tensor that a llama model does not have.
    """
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _GLOBAL:
        return f"{_GLOBAL[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    raise EngineError(f"GGUF tensor {name} is not part of a llama model")


def _config(reader: GgufFile) -> dict[str, Any]:
    architecture = reader.value("general.architecture")
    if architecture != "llama":
        raise EngineError(f"GGUF general.architecture = {architecture!r}: only llama is converted")
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}  # fastest dimension first
    hidden, vocab = shapes["token_embd.weight"]
    heads = reader.value("llama.attention.head_count")
    theta = _shortest(reader.value("llama.rope.freq_base"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": reader.value("llama.feed_forward_length"),
        "num_hidden_layers": reader.value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.value("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "vocab_size": vocab,
        "max_position_embeddings": reader.value("llama.context_length"),
        "rms_norm_eps": _shortest(reader.value("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in shapes,
        "bos_token_id": reader.value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": reader.value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": reader.value("tokenizer.ggml.padding_token_id"),
        "dtype": "float16",
    }


def _write_tokenizer(reader: GgufFile, folder: Path, context: int) -> None:
    splitter = reader.value("tokenizer.ggml.pre")
    if splitter != SMOLLM_PRE_TOKENIZER:
        raise EngineError(f"GGUF tokenizer.ggml.pre = {splitter!r}: only {SMOLLM_PRE_TOKENIZER!r} is converted")
    tokens: list[str] = reader.value("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in reader.value("tokenizer.ggml.merges")]
    types: list[int] = reader.value("tokenizer.ggml.token_type")

    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))

    roles = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    named = {f"{role}_token": tokens[reader.value(f"tokenizer.ggml.{key}_token_id")] for role, key in roles.items()}
    _write_json(folder / "special_tokens_map.json", named)
    _write_json(
        folder / "tokenizer_config.json",
        {
            **named,
            "chat_template": reader.value("tokenizer.chat_template"),
            "clean_up_tokenization_spaces": False,
            "model_max_length": context,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )


def _shortest(value: float) -> float:
    """GGUF keeps float32: 9.999999747378752e-06 was written as 1e-05."""
    return float(str(np.float32(value)))


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
