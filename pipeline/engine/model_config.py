"""Shape of a decoder of the Llama family, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import EngineError

ARCHITECTURES = {
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
}
ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True)
class ModelConfig:
    """What the forward pass needs to know.

    Attributes:
        rope_scaling: Hugging Face's `rope_scaling` mapping for "llama3" or "linear"; None for plain RoPE.
        qk_norm: RMSNorm of each head's query and key before RoPE (Qwen3).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    tie_word_embeddings: bool
    qk_norm: bool
    bos_id: int | None
    eos_id: int | None

    @property
    def qkv_size(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @classmethod
    def read(cls, folder: Path) -> ModelConfig:
        """Read `config.json`.

        Raises:
            EngineError: the file is missing or malformed, or the architecture is not of the Llama family.
        """
        path = folder / "config.json"
        try:
            data = json.loads(path.read_text())
        except OSError as error:
            raise EngineError(f"model folder {folder}: config.json cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise EngineError(f"model folder {folder}: config.json is not valid JSON ({error})") from error
        if not isinstance(data, dict):
            raise EngineError(f"model folder {folder}: config.json is not a JSON object")
        return cls.from_dict(data, where=str(path))

    @classmethod
    def from_dict(cls, data: dict[str, Any], where: str = "config.json") -> ModelConfig:
        names = data.get("architectures") or []
        architecture = names[0] if names else "none"
        if architecture not in ARCHITECTURES:
            raise EngineError(
                f"{where}: architecture {architecture} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}"
            )
        if data.get("hidden_act", "silu") != "silu":
            raise EngineError(f"{where}: hidden_act {data['hidden_act']} is not supported; supported: silu")
        window = data.get("sliding_window")
        if window and data.get("use_sliding_window", architecture == "MistralForCausalLM"):
            limit = data.get("max_position_embeddings", 0)
            if window < limit:
                raise EngineError(
                    f"{where}: sliding_window {window} is not supported (blocks that leave a window cannot be reused)"
                )
        try:
            heads = int(data["num_attention_heads"])
            hidden = int(data["hidden_size"])
            rope = dict(data.get("rope_parameters") or data.get("rope_scaling") or {})
            kind = rope.get("rope_type", rope.get("type", "default"))
            if kind not in ROPE_KEYS:
                raise EngineError(f"{where}: rope type {kind} is not supported; supported: {', '.join(ROPE_KEYS)}")
            for key in ROPE_KEYS[kind]:
                rope[key] = float(rope[key])
            eos = data.get("eos_token_id")
            return cls(
                architecture=architecture,
                vocab_size=int(data["vocab_size"]),
                hidden_size=hidden,
                intermediate_size=int(data["intermediate_size"]),
                num_layers=int(data["num_hidden_layers"]),
                num_heads=heads,
                num_kv_heads=int(data.get("num_key_value_heads") or heads),
                head_dim=int(data.get("head_dim") or hidden // heads),
                max_position_embeddings=int(data["max_position_embeddings"]),
                rms_norm_eps=float(data["rms_norm_eps"]),
                rope_theta=float(data.get("rope_theta") or rope.get("rope_theta") or 10000.0),
                rope_scaling=None if kind == "default" else {**rope, "rope_type": kind},
                tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
                qk_norm=architecture == "Qwen3ForCausalLM",
                bos_id=data.get("bos_token_id"),
                eos_id=eos[0] if isinstance(eos, list) else eos,
            )
        except KeyError as error:
            raise EngineError(f"{where}: {error.args[0]} is missing") from error
        except (TypeError, ValueError) as error:
            raise EngineError(f"{where}: a value of the wrong type ({error})") from error
