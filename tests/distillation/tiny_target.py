"""A small random target with a word-level tokenizer, in a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

VOCAB, HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 96, 32, 4, 2, 48, 3
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WORDS = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(VOCAB - 3))]
TEMPLATE = "{% for message in messages %}<s> {{ message['content'] }} {% endfor %}"


def write_target(folder: Path, *, template: bool = True, bias: bool = False, **changes: Any) -> Path:
    """Random weights, large enough that the law is far from uniform."""
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    config = {**CONFIG, **changes}
    dim = HIDDEN // HEADS
    norms = config["architectures"] == ["Qwen3ForCausalLM"]

    def random(*shape: int, scale: float = 0.25) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    tensors = {"model.norm.weight": 1 + random(HIDDEN), "model.embed_tokens.weight": random(VOCAB, HIDDEN, scale=0.5)}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = random(VOCAB, HIDDEN, scale=0.5)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes = {
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * dim, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * dim, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        for name, shape in shapes.items():
            tensors[f"{layer}{name}.weight"] = random(*shape)
            if bias and name[-6] in "qkv" and name.startswith("self_attn"):
                tensors[f"{layer}{name}.bias"] = random(shape[0])
        tensors[layer + "input_layernorm.weight"] = 1 + random(HIDDEN)
        tensors[layer + "post_attention_layernorm.weight"] = 1 + random(HIDDEN)
        if norms:
            tensors[layer + "self_attn.q_norm.weight"] = 1 + random(dim)
            tensors[layer + "self_attn.k_norm.weight"] = 1 + random(dim)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", **({"chat_template": TEMPLATE} if template else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
