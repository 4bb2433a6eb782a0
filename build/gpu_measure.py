"""What the prepared script asks of a pair of decoders; runs on any device, so that it can be tried without a GPU."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.device import check_memory, compute_type, describe, pool_bytes, weights_of
from pipeline.engine.embedded import EmbeddedStepModel
from pipeline.engine.manifest import Limits
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.paged.attention import GatheredAttention, PagedAttention
from pipeline.engine.paged.decoder import PagedDecoder
from pipeline.engine.step import StepRequest
from pipeline.kv_cache.page_table import PageTable
from pipeline.sampling.rules import PREFERENCE

LIMITS = Limits(max_seq_len=1024, max_draft_len=8, max_requests=4, kv_blocks=20, tokens_per_block=256)
CONTEXT = 512  # tokens before those of a measured pass
REPEATS = 20
TEXTS, TEXT_TOKENS, PROMPT_TOKENS = 4, 64, 32
WRONG_EVERY = 3  # drafts are the plain text's own tokens, but for every third
TIE = 0.02
"""Two tokens whose logits differ by less than this share of the row's standard deviation may change places when a pass
has another size: FP16 rounds what enters a product to one part in 2048."""
AGREES = 0.02  # largest difference of two ways to compute the same logits, over their standard deviation


@dataclass(frozen=True, eq=False)
class Pair:
    """A target and a draft, and what other decoders of the target are made from."""

    config: ModelConfig
    weights: dict[str, Tensor]
    dtype: str
    limits: Limits
    target: PagedDecoder
    draft: PagedDecoder
    draft_config: ModelConfig
    draft_weights: dict[str, Tensor]

    def again(self, role: str, graphs: bool, attention: PagedAttention | None = None) -> PagedDecoder:
        """Another decoder of the same weights, which are not copied."""
        config, weights = (self.config, self.weights) if role == "target" else (self.draft_config, self.draft_weights)
        return PagedDecoder(config, weights, self.dtype, self.limits, self.target.device, graphs, attention=attention)


def read_shape(path: Path) -> ModelConfig:
    """A shape that ships with the profiles, which leave out what no size depends on.

    Raises:
        EngineError: it is missing or malformed.
    """
    if not path.is_file():
        return ModelConfig.read(path.with_suffix(""))  # says what is missing
    rest = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0}
    return ModelConfig.from_dict({**rest, **json.loads(path.read_text())}, str(path))


def make_pair(
    target: ModelConfig, draft: ModelConfig, dtype: str, device: torch.device, limits: Limits = LIMITS
) -> Pair:
    """Both models of random numbers, made on the device.

    Raises:
        EngineError: the device has not enough memory.
    """
    if device.type == "cuda":
        kind = compute_type(device, dtype)
        parts = {
            "target weights": weights_of(target, kind),
            "draft weights": weights_of(draft, kind),
            # The target's pool three times: with graphs, without them, and with attention over gathered blocks.
            "KV pools": 3 * pool_bytes(target, limits, kind) + 2 * pool_bytes(draft, limits, kind),
        }
        check_memory(parts, *torch.cuda.mem_get_info(device), describe(device))
    weights, draft_weights = random_weights(target, dtype, device, 0), random_weights(draft, dtype, device, 1)
    return Pair(
        target,
        weights,
        dtype,
        limits,
        PagedDecoder(target, weights, dtype, limits, device),
        PagedDecoder(draft, draft_weights, dtype, limits, device),
        draft,
        draft_weights,
    )


def random_weights(config: ModelConfig, dtype: str, device: torch.device, seed: int) -> dict[str, Tensor]:
    """Tensors as an engine folder names them; sums keep their size from layer to layer."""
    generator = torch.Generator(device).manual_seed(seed)
    kind = compute_type(device, dtype)

    def matrix(rows: int, columns: int) -> Tensor:
        made = torch.empty(rows, columns, dtype=kind, device=device)
        return made.normal_(0.0, columns**-0.5, generator=generator)

    def ones(count: int) -> Tensor:
        return torch.ones(count, device=device)

    hidden, inner = config.hidden_size, config.intermediate_size
    tensors = {"embedding": matrix(config.vocab_size, hidden), "norm": ones(hidden)}
    if not config.tie_word_embeddings:
        tensors["head"] = matrix(config.vocab_size, hidden)
    for i in range(config.num_layers):
        layer = f"layers.{i}."
        tensors[f"{layer}qkv.weight"] = matrix(config.qkv_size, hidden)
        tensors[f"{layer}out.weight"] = matrix(hidden, config.num_heads * config.head_dim)
        tensors[f"{layer}gate_up.weight"] = matrix(2 * inner, hidden)
        tensors[f"{layer}down.weight"] = matrix(hidden, inner)
        tensors[f"{layer}input_norm"], tensors[f"{layer}mlp_norm"] = ones(hidden), ones(hidden)
        if config.qk_norm:
            tensors[f"{layer}q_norm"], tensors[f"{layer}k_norm"] = ones(config.head_dim), ones(config.head_dim)
    return tensors


def logits_of(decoder: PagedDecoder, tokens: list[int], last: int) -> Tensor:
    """[last, vocab] on the CPU: a prefill of all but the last tokens, then one pass of those."""
    size = decoder.limits.tokens_per_block
    table = PageTable(size, list(range(-(-len(tokens) // size))))
    first = len(tokens) - last
    with decoder.thread_context():
        decoder.forward(PackedBatch((Row(tuple(tokens[:first]), 0, table, 0),)))
        return decoder.forward(PackedBatch((Row(tuple(tokens[first:]), first, table, last),))).float().cpu()


def agreement(pair: Pair) -> dict[str, Any]:
    """Logits of a verify with graphs, without them, and with attention over gathered blocks."""
    tokens = some_tokens(pair.config, min(CONTEXT, pair.limits.max_seq_len // 2) + 5, 0)
    logits = logits_of(pair.target, tokens, 5)
    max_blocks = -(-pair.limits.max_seq_len // pair.limits.tokens_per_block)
    others = {
        "without_graphs": pair.again("target", False),
        "gathered_blocks": pair.again("target", False, GatheredAttention(max_blocks)),
    }
    scale = float(logits.std())
    differences = {
        name: float((logits_of(other, tokens, 5) - logits).abs().max()) / scale for name, other in others.items()
    }
    return {"passed": all(found <= AGREES for found in differences.values()), **differences}


def greedy_equality(pair: Pair) -> dict[str, Any]:
    """Text that verifies half wrong drafts in company, against plain text alone; where they differ, how near a tie."""
    model = EmbeddedStepModel(pair.target, pair.limits, PREFERENCE)
    texts = []
    try:
        for seed in range(TEXTS):
            prompt = some_tokens(pair.config, PROMPT_TOKENS, seed + 1)
            plain = model.submit(StepRequest(f"plain-{seed}", tuple(prompt), TEXT_TOKENS)).result().output_ids
            texts.append((prompt, list(plain)))
        threads, answers = [], [[] for _ in texts]  # type: list[threading.Thread], list[list[int]]
        for i, (prompt, plain) in enumerate(texts):
            threads.append(threading.Thread(target=speculate, args=(model, prompt, plain, answers[i], pair)))
            threads[-1].start()
        for thread in threads:
            thread.join()
    finally:
        model.close()
    found = [compare_texts(pair, prompt, plain, answer) for (prompt, plain), answer in zip(texts, answers, strict=True)]
    return {"passed": all(one["equal"] or one["near_tie"] for one in found), "texts": found}


def speculate(model: EmbeddedStepModel, prompt: list[int], plain: list[int], answer: list[int], pair: Pair) -> None:
    """Rounds of K drafts until there are as many tokens as in `plain`; K grows and shrinks."""
    turn = 0
    while len(answer) < len(plain):
        k = min(1 + turn % pair.limits.max_draft_len, len(plain) - len(answer) - 1)
        drafts = plain[len(answer) : len(answer) + k]
        for i in range(WRONG_EVERY - 1, k, WRONG_EVERY):
            drafts[i] = (drafts[i] + 1) % pair.config.vocab_size
        request = StepRequest(f"{id(answer)}-{turn}", tuple(prompt + answer), k + 1, draft_ids=tuple(drafts))
        answer += model.submit(request).result().output_ids
        turn += 1


def compare_texts(pair: Pair, prompt: list[int], plain: list[int], answer: list[int]) -> dict[str, Any]:
    """Where two greedy texts part, and how far apart the two tokens' logits are, over the row's standard deviation."""
    if answer == plain:
        return {"equal": True, "near_tie": False, "tokens": len(plain)}
    if answer == plain[: len(answer)]:
        return {"equal": False, "near_tie": False, "tokens": len(plain), "ended_early_at": len(answer)}
    at = next(i for i, (a, b) in enumerate(zip(plain, answer, strict=False)) if a != b)
    row = logits_of(pair.again("target", False), prompt + plain[: at + 1], 2)[0]
    margin = float((row[plain[at]] - row[answer[at]]).abs() / row.std())
    return {"equal": False, "near_tie": margin <= TIE, "tokens": len(plain), "differs_at": at, "margin": margin}


def pass_times(pair: Pair, drafts: Iterable[int], graphs: bool) -> dict[str, Any]:
    """Medians in ms of a draft step and of a verify of K drafts, behind a text of CONTEXT tokens, one request."""
    target, draft = pair.again("target", graphs), pair.again("draft", graphs)
    return {
        "t_plain_ms": time_of(target, 1),
        "t_draft_ms": time_of(draft, 1),
        "t_verify_ms": {str(k): time_of(target, k + 1) for k in drafts},
    }


def time_of(decoder: PagedDecoder, tokens: int) -> float:
    """Median ms of a pass whose result is waited for."""
    one = one_pass(decoder, tokens)
    with decoder.thread_context():
        one()  # captures, and warms caches
        times = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            one()
            times.append(time.perf_counter() - started)
    return round(statistics.median(times) * 1e3, 4)


def one_pass(decoder: PagedDecoder, tokens: int) -> Callable[[], None]:
    limits = decoder.limits
    context = min(CONTEXT, limits.max_seq_len - tokens)
    table = PageTable(limits.tokens_per_block, list(range(-(-(context + tokens) // limits.tokens_per_block))))
    batch = PackedBatch((Row((1,) * tokens, context, table, tokens),))

    def work() -> None:
        decoder.forward(batch)
        decoder.best()

    return work


def overlap(pair: Pair) -> dict[str, Any]:
    """Verifies of 5 tokens and four draft steps each, one after the other and on two streams at once."""
    verify, step = one_pass(pair.target, 5), one_pass(pair.draft, 1)

    def repeat(decoder: PagedDecoder, work: Callable[[], None], times: int) -> None:
        with torch.inference_mode(), decoder.thread_context():
            for _ in range(times):
                work()

    works = [(pair.target, verify, REPEATS), (pair.draft, step, 4 * REPEATS)]
    for decoder, work, _ in works:
        repeat(decoder, work, 1)
    started = time.perf_counter()
    for part in works:
        repeat(*part)
    apart = time.perf_counter() - started
    threads = [threading.Thread(target=repeat, args=part) for part in works]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = time.perf_counter() - started
    return {"apart_ms": round(apart / REPEATS * 1e3, 4), "together_ms": round(together / REPEATS * 1e3, 4)}


def some_tokens(config: ModelConfig, count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(0, config.vocab_size, (count,), generator=generator).tolist()
    return found
