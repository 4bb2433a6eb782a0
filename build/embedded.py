"""Builds embedded engines: a Hugging Face folder becomes fused weights, a tokenizer and a manifest.

Whatever is slow or can be refused happens here and not when a server starts: tokenizers are compared, weights
are fused and hashed, and the cost of a forward pass is measured on the machine that will serve.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from pipeline import __version__
from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.device import (
    DeviceKind,
    check_memory,
    compute_type,
    describe,
    pool_bytes,
    resolve_device,
    torch_device,
    weights_of,
)
from pipeline.engine.embedded import make_decoder
from pipeline.engine.manifest import (
    MANIFEST_VERSION,
    Capabilities,
    CostTable,
    Limits,
    Manifest,
    sha256_file,
)
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.weights import (
    WEIGHTS_NAME,
    CheckpointReader,
    fused_tensors,
    load_weights,
    save_weights,
    source_hash,
)
from pipeline.errors import EngineError
from pipeline.kv_cache.page_table import PageTable
from pipeline.sampling.params import OPTIONS
from pipeline.sampling.rules import PREFERENCE
from pipeline.spec import DeploymentSpec, Role
from pipeline.text.compare import require_equal_tokenizers
from pipeline.text.tokenizer import TOKENIZER_NAME, Tokenizer

Report = Callable[[str], None]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
FREQUENT_TOKENS = "frequent_token_ids.json"
COST_SIZES = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16)
COST_CONTEXT = 256
COST_REPEATS = 5
CACHE_BYTES = 256 << 20


def build_engines(spec: DeploymentSpec, target_folder: Path, draft_folder: Path | None, report: Report) -> None:
    """Build both engines of a spec; an engine whose inputs have not changed is left alone.

    Args:
        spec: the deployment.
        target_folder, draft_folder: Hugging Face folders.
        report: told what happens, a line at a time.

    Raises:
        EngineError: a folder is incomplete, the tokenizers differ, or the device is not here or too small.
    """
    device = resolve_device(spec.device)
    folders: dict[Role, Path] = {"target": target_folder}
    if draft_folder is not None:
        folders["draft"] = draft_folder
    if device == "cuda":
        require_gpu_memory(spec, folders, *torch.cuda.mem_get_info())
    if draft_folder is not None:
        require_equal_tokenizers(target_folder, draft_folder)
        report("tokenizers of target and draft are equal")
    for role, folder in folders.items():
        _build(spec, role, folder, target_folder, device, report)


def require_gpu_memory(spec: DeploymentSpec, folders: dict[Role, Path], free: int, total: int) -> None:
    """Refuse models that do not fit one GPU together, before anything is built.

    Args:
        folders: Hugging Face folders by role.
        free, total: bytes of the GPU's memory.

    Raises:
        EngineError: with every number.
    """
    device = torch_device("cuda")
    kind = compute_type(device, spec.dtype)
    parts = {}
    for role, folder in folders.items():
        config = ModelConfig.read(folder)
        parts[f"{role} weights"] = weights_of(config, kind, spec.draft.head_tokens if role == "draft" else None)
        parts[f"{role} KV pool"] = pool_bytes(config, _limits(spec, role, config), kind)
    check_memory(parts, free, total, describe(device))


def _build(
    spec: DeploymentSpec, role: Role, folder: Path, target_folder: Path, device: DeviceKind, report: Report
) -> None:
    config = ModelConfig.read(folder)
    reader = CheckpointReader(folder)
    head_tokens = spec.draft.head_tokens if role == "draft" else None
    threads = spec.step_model(role).threads
    # A draft without a tokenizer uses its target's.
    texts = folder if (folder / TOKENIZER_NAME).is_file() else target_folder
    tokenizer_files = [texts / name for name in TOKENIZER_FILES if (texts / name).is_file()]
    ranking = [folder / FREQUENT_TOKENS] if head_tokens and (folder / FREQUENT_TOKENS).is_file() else []
    source = source_hash(folder, [*reader.files, *tokenizer_files, *ranking])
    shares_embedding = "model.embed_tokens.weight" not in reader
    if shares_embedding:
        # The draft is not whole without its target.
        source += "+" + source_hash(target_folder, CheckpointReader(target_folder).files)
    limits = _limits(spec, role, config)
    capabilities = Capabilities(
        rules=PREFERENCE,
        draft_options=OPTIONS,
        options=OPTIONS,
        generation_logits="log_law",
        log_probs=True,
        drops_drafts=False,
        deterministic=device == "cpu",
    )
    destination = spec.engine_dir(role)
    built_with = {
        "specdec": __version__,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "head_tokens": str(head_tokens),
        "threads": str(threads),  # the costs are theirs
    }
    if device != "cpu":
        built_with["device"] = describe(torch_device(device))
    if _up_to_date(destination, source, spec, limits, capabilities, built_with):
        report(f"{role}: up to date")
        return
    temporary = destination.with_name(f".{role}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        report(f"{role}: fusing {config.num_layers} layers into {spec.dtype}")
        embedding = None
        if shares_embedding:
            embedding = CheckpointReader(target_folder)("model.embed_tokens.weight")
        head_ids = _frequent_tokens(folder, head_tokens, config) if head_tokens else None
        target_vocab = ModelConfig.read(target_folder).vocab_size
        if head_ids is None and config.vocab_size > target_vocab:
            # A draft padded further than its target must not propose what the target has no logit for.
            head_ids = list(range(target_vocab))
        save_weights(temporary, fused_tensors(config, reader, embedding, head_ids), spec.dtype)
        shutil.copy(folder / "config.json", temporary / "config.json")
        for path in tokenizer_files:
            shutil.copy(path, temporary / path.name)
        report(f"{role}: measuring the cost of a pass")
        cost = measure_cost(temporary, config, spec, limits, threads, torch_device(device))
        tokenizer = Tokenizer.load(temporary)
        files = {path.name: sha256_file(path) for path in sorted(temporary.iterdir())}
        Manifest(
            version=MANIFEST_VERSION,
            role=role,
            engine="embedded",
            model=str(spec.step_model(role).model),
            source_sha256=source,
            dtype=spec.dtype,
            device=device,
            vocab_size=tokenizer.vocab_size,
            padded_vocab_size=config.vocab_size,
            # config.json may list several; the tokenizer names the one that ends an answer.
            end_id=tokenizer.eos_id if tokenizer.eos_id is not None else config.eos_id,
            files=files,
            limits=limits,
            capabilities=capabilities,
            cost=cost,
            built_with=built_with,
        ).write(temporary)
        shutil.rmtree(destination, ignore_errors=True)
        temporary.rename(destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shown = ", ".join(f"{n}: {cost.seconds(n) * 1e3:.1f}" for n in (1, 2, 4, 8))
    report(f"{role}: {destination} ({(destination / WEIGHTS_NAME).stat().st_size / 1e6:.0f} MB; ms by tokens {shown})")


def measure_cost(
    folder: Path, config: ModelConfig, spec: DeploymentSpec, limits: Limits, threads: int, device: torch.device
) -> CostTable:
    """Seconds of a forward pass by new tokens, at a context of 256 tokens.

    The least of several: what else the machine does while engines are built must not be taken for their cost.
    """
    decoder = make_decoder(config, load_weights(folder), spec.dtype, limits, threads, device)
    context = min(COST_CONTEXT, limits.max_seq_len - max(COST_SIZES)) if limits.max_seq_len > 32 else 1
    table = PageTable(limits.tokens_per_block, list(range(limits.kv_blocks)), context)
    times: dict[int, list[float]] = {size: [] for size in COST_SIZES if context + size <= limits.max_seq_len}
    other_work = np.zeros(CACHE_BYTES // 8)
    with decoder.thread_context():
        for repeat in range(COST_REPEATS + 1):
            for size in times:
                row = Row((1,) * size, context, table, size)
                # Between two passes of a draft the target reads all its weights: no pass finds its own in a cache.
                other_work.sum()
                started = time.perf_counter()
                decoder.forward(PackedBatch((row,)))
                decoder.best()  # waits for a GPU
                if repeat:  # the first pass warms caches and threads, and captures graphs
                    times[size].append(time.perf_counter() - started)
    decoder.close()
    return CostTable(
        context_tokens=context,
        seconds_by_tokens={size: min(t) for size, t in times.items()},
        measured_on=describe(device),
    )


def _limits(spec: DeploymentSpec, role: Role, config: ModelConfig) -> Limits:
    if role == "target" and spec.limits.max_seq_len > config.max_position_embeddings:
        raise EngineError(
            f"limits.max_seq_len = {spec.limits.max_seq_len}: the target's context is "
            f"{config.max_position_embeddings} tokens"
        )
    return Limits(
        max_seq_len=min(spec.limits.max_seq_len, config.max_position_embeddings),
        max_draft_len=spec.limits.max_draft_len if role == "target" else 0,
        max_requests=spec.limits.max_requests,
        kv_blocks=spec.step_model(role).kv_blocks,
        tokens_per_block=spec.tokens_per_block,
    )


def _frequent_tokens(folder: Path, count: int, config: ModelConfig) -> list[int]:
    path = folder / FREQUENT_TOKENS
    if not path.is_file():
        raise EngineError(f"draft.head_tokens = {count} needs {path} (token ids, most frequent first)")
    try:
        ids = [int(token) for token in json.loads(path.read_text())][:count]
    except (TypeError, ValueError) as error:
        raise EngineError(f"{path} is not a JSON list of token ids ({error})") from error
    if len(ids) < count or len(set(ids)) != len(ids) or not all(0 <= token < config.vocab_size for token in ids):
        raise EngineError(
            f"{path} must hold at least draft.head_tokens = {count} distinct token ids below {config.vocab_size}"
        )
    return ids


def _up_to_date(
    destination: Path,
    source: str,
    spec: DeploymentSpec,
    limits: Limits,
    capabilities: Capabilities,
    built_with: dict[str, str],
) -> bool:
    try:
        manifest = Manifest.read(destination)
        manifest.verify_files(destination)
    except EngineError:
        return False
    return (
        manifest.source_sha256 == source
        and manifest.dtype == spec.dtype
        and manifest.limits == limits
        and manifest.capabilities == capabilities
        and manifest.built_with == built_with
    )
