"""The draft that is trained: some layers of its target, with the target's own embedding and LM head."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from pipeline.distillation.corpus import Sequence
from pipeline.distillation.llama import Llama, causal
from pipeline.distillation.writer import Target
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.weights import CheckpointReader
from pipeline.errors import InvalidRequestError

FREQUENT_TOKENS = "frequent_token_ids.json"
RANKED = 8192
"""Tokens in frequent_token_ids.json: as many as an engine may be asked to keep in its LM head."""


class Student(nn.Module):
    """A draft over its target's embedding.

    Args:
        target: gives embedding and LM head; neither is trained.
        layers: the draft's layers and final norm.
        frequent: token ids, most frequent first.
        head_tokens: how many of them the LM head keeps while training.
    """

    def __init__(self, target: Target, layers: Llama, frequent: list[int], head_tokens: int) -> None:
        super().__init__()
        self.layers = layers.to(target.device)
        self.frequent = frequent
        self._embedding = target.embedding
        self.head_ids = torch.tensor(frequent[:head_tokens], device=target.device)
        self._head = target.head[self.head_ids].to(target.dtype)  # [head_tokens, hidden]
        self.places = torch.full((target.config.vocab_size,), -1, dtype=torch.int64, device=target.device)
        self.places[self.head_ids] = torch.arange(len(self.head_ids), device=target.device)

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states [rows, n, hidden] of tokens [rows, n]; padding behind a text disturbs nothing."""
        x = self._embedding[tokens].float()
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        hidden: Tensor = self.layers(x, positions, causal)
        return hidden

    def log_law(self, hidden: Tensor, temperatures: Tensor | None = None) -> Tensor:
        """log q of the head's tokens, [n, head_tokens] FP32, for hidden states [n, hidden].

        Args:
            temperatures: [n], above 0; 1 if None.
        """
        if temperatures is not None:
            hidden = hidden / temperatures[:, None]  # the head is linear: cheaper than dividing the logits
        logits = functional.linear(hidden.to(self._head.dtype), self._head)
        return functional.log_softmax(logits, -1, dtype=torch.float32)

    def save(self, folder: Path, target_folder: Path) -> None:
        """Write config.json, model.safetensors (FP16) and the token ranking; the embedding stays the target's."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {"model.norm.weight": self.layers.norm}
        for number, layer in enumerate(self.layers.layers):
            tensors.update(layer.tensors(number))
        if not self.layers.config.tie_word_embeddings:
            tensors["lm_head.weight"] = CheckpointReader(target_folder)("lm_head.weight")
        halves = {name: tensor.detach().half().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(halves, folder / "model.safetensors", {"format": "pt"})
        data = draft_config(json.loads((target_folder / "config.json").read_text()), len(self.layers.layers))
        (folder / "config.json").write_text(json.dumps(data, indent=1))
        (folder / FREQUENT_TOKENS).write_text(json.dumps(self.frequent))


def draft_config(target: dict[str, Any], layers: int) -> dict[str, Any]:
    """The target's config.json with fewer layers; what says how the target was stored is left out."""
    dropped = ("layer_types", "max_window_layers", "torch_dtype", "transformers_version", "quantization_config")
    kept = {key: value for key, value in target.items() if key not in dropped and not key.startswith("_")}
    return {**kept, "num_hidden_layers": layers, "dtype": "float16"}


def layers_of_target(target_folder: Path, count: int, positions: int) -> Llama:
    """The target's first layers and its last: what lies between refines more than it transforms.

    Raises:
        InvalidRequestError: the target has not so many layers.
    """
    config = ModelConfig.read(target_folder)
    if not 1 <= count < config.num_layers:
        raise InvalidRequestError(
            "layers", count, f"must be between 1 and {config.num_layers - 1}, the target has one more"
        )
    chosen = [*range(count - 1), config.num_layers - 1]
    return Llama(replace(config, num_layers=count), CheckpointReader(target_folder), chosen, positions)


def layers_of_draft(draft_folder: Path, target: ModelConfig, positions: int) -> Llama:
    """All layers of a draft that exists already.

    Raises:
        InvalidRequestError: it does not fit the target.
        EngineError: the folder is incomplete.
    """
    config = ModelConfig.read(draft_folder)
    for field in ("hidden_size", "vocab_size"):
        if getattr(config, field) != getattr(target, field):
            raise InvalidRequestError(
                f"init {draft_folder}: {field}",
                getattr(config, field),
                f"must be the target's, {getattr(target, field)}",
            )
    return Llama(config, CheckpointReader(draft_folder), list(range(config.num_layers)), positions)


def rank_tokens(sequences: Iterable[Sequence], vocab_size: int, earlier: list[int] | None = None) -> list[int]:
    """Token ids by how often the target's law expects them in its text, most frequent first, at most RANKED.

    Args:
        earlier: a ranking made on other text; it counts as much as this text, by Zipf's law.
    """
    expected = torch.zeros(vocab_size, dtype=torch.float64)
    for sequence in sequences:
        mass = sequence.top_log_probs.double().exp().flatten()
        expected.index_add_(0, sequence.top_ids.long().flatten(), mass)
    if earlier:
        zipf = 1 / torch.arange(1, len(earlier) + 1, dtype=torch.float64)
        expected[torch.tensor(earlier)] += expected.sum() * zipf / zipf.sum()
    ranking: list[int] = expected.sort(descending=True, stable=True).indices[:RANKED].tolist()
    return ranking
