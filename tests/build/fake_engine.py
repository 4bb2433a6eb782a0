"""Engine folders as `trtllm-build` leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_folders import VOCAB


def write_engine(folder: Path, role: str, ranks: int = 1, **changes: Any) -> Path:
    """A compiled engine as trtllm-build leaves it; changes name a field of build_config or of its plugin_config."""
    folder.mkdir(parents=True, exist_ok=True)
    plugins = {"tokens_per_block": 8, "use_paged_context_fmha": True}
    build = {
        "max_seq_len": 52,
        "max_batch_size": 4,
        "max_num_tokens": 256,
        "max_beam_width": 1,
        "max_draft_len": 4 if role == "target" else 0,
        "kv_cache_type": "PAGED",
        "speculative_decoding_mode": 2 if role == "target" else 1,
        "gather_generation_logits": role == "draft",
    }
    model = {
        "architecture": "LlamaForCausalLM",
        "dtype": "float16",
        "logits_dtype": "float32",
        "vocab_size": VOCAB - 1,
        "num_hidden_layers": 1,
        "quantization": {"quant_algo": None},
        "mapping": {"tp_size": ranks, "pp_size": 1},
    }
    version = changes.pop("version", "1.2.1")
    for key, value in changes.items():
        next(part for part in (plugins, build, model) if key in part)[key] = value
    build_config = {**build, "plugin_config": plugins}
    config = {"version": version, "pretrained_config": model, "build_config": build_config}
    (folder / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        (folder / f"rank{rank}.engine").write_bytes(b"engine")
    return folder
