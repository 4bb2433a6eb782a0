"""Small random Hugging Face folders, and a deployment spec over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from pipeline.spec import DeploymentSpec

WORDS = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(29))]
VOCAB, HIDDEN, HEADS, INNER = 40, 16, 2, 24  # the logits are padded: 32 words
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": [1, 2],
}


def write_model(folder: Path, seed: int = 0, embedding: bool = True, tokenizer: bool = True, **changes: Any) -> Path:
    """A random one-layer Llama in a Hugging Face folder."""
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    layer, dim = "model.layers.0.", HIDDEN // HEADS
    tensors = {
        "model.norm.weight": 1 + random(HIDDEN),
        layer + "input_layernorm.weight": 1 + random(HIDDEN),
        layer + "post_attention_layernorm.weight": 1 + random(HIDDEN),
        layer + "self_attn.q_proj.weight": random(HIDDEN, HIDDEN),
        layer + "self_attn.k_proj.weight": random(dim, HIDDEN),
        layer + "self_attn.v_proj.weight": random(dim, HIDDEN),
        layer + "self_attn.o_proj.weight": random(HIDDEN, HIDDEN),
        layer + "mlp.gate_proj.weight": random(INNER, HIDDEN),
        layer + "mlp.up_proj.weight": random(INNER, HIDDEN),
        layer + "mlp.down_proj.weight": random(HIDDEN, INNER),
    }
    if embedding:
        tensors["model.embed_tokens.weight"] = random(VOCAB, HIDDEN)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    if tokenizer:
        write_tokenizer(folder, WORDS)
    return folder


def write_tokenizer(folder: Path, words: list[str]) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))


def make_spec(**changes: Any) -> DeploymentSpec:
    data: dict[str, Any] = {
        "name": "tiny",
        "dtype": "float32",
        "target": {"model": "target", "kv_blocks": 12, "threads": 1},
        "draft": {"kind": "model", "model": "draft", "kv_blocks": 12, "threads": 1},
        "tokens_per_block": 8,
        "limits": {"max_seq_len": 48, "max_draft_len": 4, "max_requests": 4},
    }
    for key, value in changes.items():
        data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
    return DeploymentSpec.model_validate(data)
