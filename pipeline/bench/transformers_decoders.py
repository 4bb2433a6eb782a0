"""What people use instead, in this process: `generate` of transformers, plain and with its own speculation."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.bench.contest import Asked, Decode
from pipeline.errors import EngineError

DTYPES = ("FP32", "BF16")
ASSISTANT_TOKENS = (1, 3, 5)
LOOKUP_TOKENS = (3, 10)
EMBEDDING = "model.embed_tokens.weight"


def plain_name(dtype: str) -> str:
    """Of the contestant that decodes plainly."""
    return f"transformers {dtype}"


def transformers_decoders(
    model_folder: Path,
    draft_folder: Path | None,
    max_tokens: int,
    few: bool,
    tick: Callable[[str], None],
) -> tuple[dict[str, Decode], list[str]]:
    """Contestants on the same weights; greedy, exactly `max_tokens` tokens.

    Args:
        model_folder: the Hugging Face folder that the target was built from.
        draft_folder: that of the draft; None leaves assisted generation to prompt lookup.
        few: one assisted setting and one look-up per dtype instead of all.
        tick: told what is loaded.

    Returns:
        Contestants by name, and the names of those that speculate.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()  # the bench has its own
    decoders: dict[str, Decode] = {}
    speculative: list[str] = []
    for dtype in DTYPES:
        tick(f"loading transformers {dtype}")
        kind = {"FP32": torch.float32, "BF16": torch.bfloat16}[dtype]
        model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=kind).eval()
        decoders[plain_name(dtype)] = _decoder(model, max_tokens)
        settings: dict[str, dict[str, Any]] = {}
        if draft_folder is not None:
            draft = load_draft(draft_folder, model)
            # Its default changes the number as it goes; a constant number is the other way that it offers.
            draft.generation_config.assistant_confidence_threshold = 0.0
            for k in ASSISTANT_TOKENS[1:2] if few else ASSISTANT_TOKENS:
                settings[f"draft, {k} constant"] = {"assistant_model": draft, "num_assistant_tokens": k}
            default = load_draft(draft_folder, model)
            settings["draft, its default"] = {"assistant_model": default}
        for k in LOOKUP_TOKENS[-1:] if few else LOOKUP_TOKENS:
            settings[f"prompt lookup, {k}"] = {"prompt_lookup_num_tokens": k}
        for name, setting in settings.items():
            full = f"{plain_name(dtype)} ({name})"
            decoders[full] = _decoder(model, max_tokens, **setting)
            speculative.append(full)
    return decoders, speculative


def load_draft(folder: Path, target: Any) -> Any:
    """A draft as transformers' own model.

    One that shares its target's token embedding has none in its file: it is given the target's. Our engines compute a
    part of its head alone, the tokens that are frequent; here it is whole, since transformers has no such thing.

    Args:
        folder: config.json and model.safetensors.
        target: the loaded target, whose dtype it takes.

    Raises:
        EngineError: a tensor is missing, or is not part of such a model.
    """
    import transformers
    from safetensors.torch import load_file

    draft = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(folder), dtype=target.dtype
    ).eval()
    weights = {name: tensor.to(target.dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    weights.setdefault(EMBEDDING, target.get_input_embeddings().weight.detach())
    missing, unknown = draft.load_state_dict(weights, strict=False)
    draft.tie_weights()
    lost = [name for name in missing if name != "lm_head.weight"]
    if lost or unknown:
        raise EngineError(f"model folder {folder}: tensors missing {lost}, unknown {unknown}")
    draft.generation_config = transformers.GenerationConfig.from_dict(target.generation_config.to_dict())
    return draft


def _decoder(model: Any, max_tokens: int, **setting: Any) -> Decode:
    import torch

    draft = setting.get("assistant_model")
    k = setting.pop("num_assistant_tokens", None)

    def decode(asked: Asked) -> int:
        batch = torch.tensor([asked.ids])
        if draft is not None and k is not None:
            draft.generation_config.num_assistant_tokens = k
            draft.generation_config.num_assistant_tokens_schedule = "constant"
        with torch.inference_mode():
            out = model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                do_sample=False,
                **setting,
            )
        return int(out.shape[1] - len(asked.ids))

    return decode
