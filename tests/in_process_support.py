"""The whole pipeline in this process over small random models: real engines, real KV caches, a letter tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.compiled.decoder import CompiledDecoder
from pipeline.engine.embedded import EmbeddedStepModel, make_decoder
from pipeline.engine.manifest import Capabilities, CostTable, Limits, Manifest
from pipeline.engine.model_config import ModelConfig
from pipeline.kv_cache.page_table import PageTable
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.request import GenerationRequest
from pipeline.orchestrator.setup import make_orchestrator
from pipeline.sampling.params import OPTIONS
from pipeline.sampling.rules import PREFERENCE
from pipeline.spec import DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

Weights = dict[str, Tensor]


class LetterTokenizer:
    """Token t is the letter chr(97 + t); the last token is the end token, without text."""

    byte_fallback = False

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self.special_ids = frozenset({vocab - 1})

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) - 97 for letter in text if "a" <= letter < chr(97 + self._vocab)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(97 + token) for token in ids if token != self._vocab - 1)

    def token(self, token_id: int) -> str | None:
        return chr(97 + token_id) if token_id < self._vocab else None


def make_config(vocab: int, hidden: int = 32, layers: int = 2) -> ModelConfig:
    """A Llama with grouped attention."""
    return ModelConfig.from_dict(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": vocab,
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "eos_token_id": vocab - 1,
        }
    )


def random_weights(config: ModelConfig, seed: int, sharpness: float = 1.0) -> Weights:
    """Weights large enough for laws that depend on the text.

    Args:
        config, seed: of the model and of its weights.
        sharpness: factor of the logits.
    """
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * (scale / columns**0.5)

    hidden, inner = config.hidden_size, config.intermediate_size
    weights = {
        "embedding": torch.randn(config.vocab_size, hidden, generator=generator),
        "head": matrix(config.vocab_size, hidden, 2.0 * sharpness),
        "norm": torch.ones(hidden),
    }
    for i in range(config.num_layers):
        weights |= {
            f"layers.{i}.qkv.weight": matrix(config.qkv_size, hidden, 1.5),
            f"layers.{i}.out.weight": matrix(hidden, config.num_heads * config.head_dim, 1.5),
            f"layers.{i}.gate_up.weight": matrix(2 * inner, hidden, 1.5),
            f"layers.{i}.down.weight": matrix(hidden, inner, 1.5),
            f"layers.{i}.input_norm": torch.ones(hidden),
            f"layers.{i}.mlp_norm": torch.ones(hidden),
        }
    return weights


def blurred(weights: Weights, seed: int, noise: float) -> Weights:
    """A draft of these weights: right more often the smaller the noise."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + noise * tensor.std() * torch.randn(tensor.shape, generator=generator)
        if tensor.dim() > 1
        else tensor
        for name, tensor in weights.items()
    }


@dataclass(frozen=True)
class Setting:
    """A deployment in numbers.

    Attributes:
        kind: of the draft.
        controller: fields of the controller spec.
        vocab: tokens, the end token included.
        noise: of the draft's weights.
        draft_sampling: "q" or "greedy".
        draft_ahead: as in a spec.
    """

    kind: Literal["hybrid", "model", "ngram", "none"] = "model"
    controller: tuple[tuple[str, Any], ...] = (("kind", "fixed"), ("k", 4))
    vocab: int = 26
    hidden: int = 32
    layers: int = 2
    seed: int = 3
    sharpness: float = 1.0
    noise: float = 0.05
    max_seq_len: int = 160
    kv_blocks: int = 64
    draft_kv_blocks: int | None = None  # None: as many
    max_requests: int = 32
    min_match: int = 2
    draft_sampling: Literal["q", "greedy"] = "q"
    draft_ahead: Literal["auto", "on", "off"] = "auto"

    def pool(self, role: str) -> int:
        """KV blocks of an engine."""
        own = self.draft_kv_blocks if role == "draft" else None
        return self.kv_blocks if own is None else own

    def replace(self, **changes: Any) -> Setting:
        return replace(self, **changes)


@dataclass(frozen=True)
class Deployment:
    """Running engines and what joins them."""

    orchestrator: Orchestrator
    target: EmbeddedStepModel
    draft: EmbeddedStepModel | None
    weights: Weights
    config: ModelConfig

    def check_integrity(self) -> None:
        """No call runs, so every block is free or held by the index alone."""
        for model in (self.target, self.draft):
            if model is not None:
                model.kv.check_integrity()
                assert model.kv.available_blocks == model._limits.kv_blocks


@contextmanager
def deploy(setting: Setting, engine: type[EmbeddedStepModel] = EmbeddedStepModel) -> Iterator[Deployment]:
    """Start both engines; stop them at the end.

    Args:
        setting: what to deploy.
        engine: class of the engines; a planted bug is a subclass.
    """
    config = make_config(setting.vocab, setting.hidden, setting.layers)
    weights = random_weights(config, setting.seed, setting.sharpness)
    spec = DeploymentSpec.model_validate(
        {
            "name": "t",
            "dtype": "float32",
            "tokens_per_block": 4,
            "target": {"model": "t", "kv_blocks": setting.kv_blocks},
            "draft": {
                "kind": setting.kind,
                "model": "d",
                "sampling": setting.draft_sampling,
                "kv_blocks": setting.pool("draft"),
                "ngram": {"min_match": setting.min_match},
            },
            "limits": {
                "max_seq_len": setting.max_seq_len,
                "max_draft_len": 8,
                "max_requests": setting.max_requests,
            },
            "controller": dict(setting.controller),
            "draft_ahead": setting.draft_ahead,
        }
    )
    manifests = {role: _manifest(role, setting) for role in ("target", "draft")}
    models = {"target": weights, "draft": blurred(weights, setting.seed + 1, setting.noise)}
    if not spec.draft.uses_model:
        del models["draft"]
    engines: dict[str, EmbeddedStepModel] = {}
    try:
        for role, tensors in models.items():
            limits = manifests[role].limits
            decoder = make_decoder(config, tensors, "float32", limits)
            loss = 0 if role == "target" else limits.tokens_per_block
            engines[role] = engine(decoder, limits, PREFERENCE, loss)
        orchestrator = make_orchestrator(
            spec,
            cast(Tokenizer, LetterTokenizer(setting.vocab)),
            engines["target"],
            manifests["target"],
            engines.get("draft"),
            manifests["draft"] if "draft" in engines else None,
        )
        yield Deployment(orchestrator, engines["target"], engines.get("draft"), weights, config)
    finally:
        for model in engines.values():
            model.close()


def many_answers(deployment: Deployment, request: GenerationRequest, count: int, end: int) -> list[tuple[int, ...]]:
    """Tokens of `count` answers under seeds 0, 1, 2 ..., the end token included where it came.

    Raises:
        AssertionError: with K > 0, hardly a draft was kept, or hardly one rejected; or something was left behind.
    """
    accepted: list[int] = []

    def answer(seed: int) -> tuple[int, ...]:
        (chunk,) = deployment.orchestrator.generate(replace(request, seed=seed))
        assert chunk.statistics is not None
        accepted.append(chunk.statistics.num_accepted_draft_tokens)
        return chunk.token_ids if chunk.finish_reason == "length" else (*chunk.token_ids, end)

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(answer, range(count)))
    deployment.check_integrity()
    assert deployment.orchestrator.draft_health.failures == 0
    assert request.num_draft_tokens == 0 or count // 20 < sum(accepted) < 2 * count, "drafts are kept and rejected"
    return found


def exact_text(setting: Setting, prompt: str, max_tokens: int) -> tuple[str, str]:
    """Greedy text and finish reason of the target, each token from a pass over the whole text.

    Raises:
        AssertionError: two tokens are so close that rounding could decide.
    """
    config = make_config(setting.vocab, setting.hidden, setting.layers)
    weights = random_weights(config, setting.seed, setting.sharpness)
    decoder = CompiledDecoder(config, weights, "float32", setting.max_seq_len, setting.max_seq_len, 1)
    tokenizer = LetterTokenizer(setting.vocab)
    ids, answer = tokenizer.encode(prompt), list[int]()
    while len(answer) < max_tokens:
        row = Row((*ids, *answer), 0, PageTable(1, list(range(setting.max_seq_len))), 1)
        (logits,) = decoder.forward(PackedBatch((row,)))
        best, second = logits.topk(2).values.tolist()
        assert best - second > 1e-4, "a tie: take another seed"
        token = int(logits.argmax())
        if token == setting.vocab - 1:
            return tokenizer.decode(answer), "eos"
        answer.append(token)
    return tokenizer.decode(answer), "length"


def _manifest(role: str, setting: Setting) -> Manifest:
    return Manifest.model_validate(
        {
            "version": 1,
            "role": role,
            "engine": "embedded",
            "model": "random",
            "source_sha256": "",
            "dtype": "float32",
            "vocab_size": setting.vocab,
            "padded_vocab_size": setting.vocab,
            "end_id": setting.vocab - 1,
            "files": {},
            "limits": Limits(
                max_seq_len=setting.max_seq_len,
                max_draft_len=8 if role == "target" else 0,
                max_requests=setting.max_requests,
                kv_blocks=setting.pool(role),
                tokens_per_block=4,
            ),
            "capabilities": Capabilities(
                rules=PREFERENCE,
                draft_options=OPTIONS,
                options=OPTIONS,
                generation_logits="log_law",
                log_probs=True,
                drops_drafts=False,
                deterministic=True,
            ),
            "cost": CostTable(context_tokens=1, seconds_by_tokens={1: 0.001, 2: 0.0011, 9: 0.0015}),
            "built_with": {},
        }
    )
