"""The shape of a model, as far as memory and time depend on it: read from `config.json` alone, without weights."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import EngineError
from pipeline.spec import ROOT
from pipeline.step_model_spec import Weights

SHAPES = ROOT / "build" / "profiles" / "shapes"  # <owner>--<name>.json: the keys of public config.json files read here
BYTES: dict[Weights, float] = {"float16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}

# Norms of the hidden size per layer; Gemma 2 and 3 have one before and one after each half.
NORMS = {
    "LlamaForCausalLM": 2,
    "MistralForCausalLM": 2,
    "Qwen2ForCausalLM": 2,
    "Qwen3ForCausalLM": 2,
    "GemmaForCausalLM": 2,
    "Gemma2ForCausalLM": 4,
    "Gemma3ForCausalLM": 4,
}
_QKV_BIAS = {"Qwen2ForCausalLM"}
_QK_NORM = {"Qwen3ForCausalLM", "Gemma3ForCausalLM"}
_TIED = {"GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"}  # where config.json does not say


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder with gated MLP and grouped-query attention.

    Attributes:
        sliding_window: tokens that some layers attend to at most; None for full attention everywhere.
        eos_ids: tokens that end a text.
        quantization: `quant_method` of weights that were published quantised, else None.
    """

    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    tied: bool
    sliding_window: int | None
    bos_id: int | None
    eos_ids: tuple[int, ...]
    quantization: str | None

    @property
    def layer_products(self) -> int:
        """Parameters of the products of one layer: what quantisation shrinks."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def layer_rest(self) -> int:
        """Parameters of one layer that stay in 16 bits: norms and biases."""
        bias = (self.heads + 2 * self.kv_heads) * self.head_dim if self.architecture in _QKV_BIAS else 0
        qk_norm = 2 * self.head_dim if self.architecture in _QK_NORM else 0
        return NORMS[self.architecture] * self.hidden + bias + qk_norm

    @property
    def head(self) -> int:
        """Parameters of the embedding, and of the LM head."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """As a model card counts them: tied embeddings once."""
        tables = self.head if self.tied else 2 * self.head
        return self.layers * (self.layer_products + self.layer_rest) + tables + self.hidden

    @classmethod
    def read(cls, folder: Path) -> ModelShape:
        """Read `config.json` of a Hugging Face folder.

        Raises:
            EngineError: it is missing or malformed, or the architecture is not one that is planned for.
        """
        path = Path(folder) / "config.json"
        return cls.from_dict(_json_object(path), str(path))

    @classmethod
    def known(cls, hub_id: str) -> ModelShape:
        """The shape of a hub model that ships with the profiles; nothing is downloaded.

        Raises:
            EngineError: it is none of them; names the nearest.
        """
        path = SHAPES / f"{hub_id.replace('/', '--')}.json"
        if "/" not in hub_id or not path.is_file():
            near = difflib.get_close_matches(hub_id, known_ids(), n=1, cutoff=0.0)
            raise EngineError(
                f"model {hub_id}: its shape is not in {SHAPES.relative_to(ROOT)} (nearest: {', '.join(near)}); "
                "download its config.json into a folder and name that, or add the shape"
            )
        return cls.from_dict(_json_object(path), str(path))

    @classmethod
    def from_dict(cls, data: dict[str, Any], where: str = "config.json") -> ModelShape:
        """Read what `config.json` holds.

        Raises:
            EngineError: naming the key, its value and what is allowed.
        """
        names = data.get("architectures")
        architecture = names[0] if isinstance(names, list) and names else "none"
        if architecture not in NORMS:
            raise EngineError(
                f"{where}: architecture {architecture} is not supported; supported: {', '.join(sorted(NORMS))}"
            )
        heads = _count(data, "num_attention_heads", where)
        hidden = _count(data, "hidden_size", where)
        window = data.get("sliding_window") if data.get("use_sliding_window", True) else None
        eos = data.get("eos_token_id")
        quantization = data.get("quantization_config")
        shape = cls(
            architecture=architecture,
            layers=_count(data, "num_hidden_layers", where),
            hidden=hidden,
            intermediate=_count(data, "intermediate_size", where),
            heads=heads,
            kv_heads=_count(data, "num_key_value_heads", where, heads),
            head_dim=_count(data, "head_dim", where, hidden // heads),
            vocab=_count(data, "vocab_size", where),
            max_positions=_count(data, "max_position_embeddings", where),
            tied=bool(data.get("tie_word_embeddings", architecture in _TIED)),
            sliding_window=window if isinstance(window, int) else None,
            bos_id=data.get("bos_token_id"),
            eos_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
            quantization=str(quantization.get("quant_method")) if isinstance(quantization, dict) else None,
        )
        if shape.heads % shape.kv_heads:
            raise EngineError(
                f"{where}: num_key_value_heads = {shape.kv_heads} does not divide num_attention_heads = {shape.heads}"
            )
        return shape


def known_ids() -> list[str]:
    """Hub ids whose shapes ship with the profiles."""
    return sorted(path.stem.replace("--", "/") for path in SHAPES.glob("*.json"))


def _json_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise EngineError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise EngineError(f"{path} is not a JSON object")
    return data


def _count(data: dict[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = data.get(key)
    value = default if value is None else value
    if value is None:
        raise EngineError(f"{where}: {key} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EngineError(f"{where}: {key} = {value!r} must be a whole number above 0")
    return value
