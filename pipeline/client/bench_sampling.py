"""What sampling costs: laws and rule, from logits to token ids, per option set.

As an engine computes them: shares of the rows on all its threads. The least of several: measure on a machine that does
nothing else.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from pipeline.client.terminal import print_table
from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.embedded import make_decoder
from pipeline.engine.manifest import Manifest
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.weights import load_weights
from pipeline.kv_cache.page_table import PageTable
from pipeline.sampling.call import VerifyCall
from pipeline.sampling.params import GREEDY, SamplingParams
from pipeline.sampling.row_team import RowTeam
from pipeline.spec import DeploymentSpec

ROWS, DRAFTS, HISTORY = 32, 5, 512
VOCABULARIES = (49_152, 128_256)
REPEATS = 7
FORWARD_CONTEXT = 64

WARM = SamplingParams(0.7)
OPTION_SETS: dict[str, tuple[SamplingParams, str]] = {
    "greedy": (GREEDY, "block"),
    "temperature, token": (WARM, "token"),
    "temperature, block": (WARM, "block"),
    "temperature, match": (WARM, "match"),
    "temperature, coupled": (WARM, "coupled"),
    "top-k 50": (replace(WARM, top_k=50), "block"),
    "top-p 0.95": (replace(WARM, top_p=0.95), "block"),
    "top-p 0.95, coupled": (replace(WARM, top_p=0.95), "coupled"),
    "min-p 0.05": (replace(WARM, min_p=0.05), "block"),
    "penalties": (
        replace(WARM, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1),
        "block",
    ),
    "bias, bad words": (replace(WARM, logit_bias=((5, 1.0), (9, -4.0)), bad_words=((3,), (7, 8))), "block"),
    "all": (
        SamplingParams(0.7, 50, 0.95, 0.02, 1.1, 0.1, 0.1, ((5, 1.0), (9, -4.0)), ((3,), (7, 8))),
        "block",
    ),
}


@dataclass(frozen=True)
class SamplingCost:
    """Seconds of one verify of ROWS rows with DRAFTS drafts each.

    Attributes:
        read_s: one read of p and q, for comparison.
        forward_s: the engine's verify forward of as many rows and drafts; None without an engine.
    """

    vocab: int
    options: str
    seconds: float
    read_s: float
    forward_s: float | None

    @property
    def reads(self) -> float:
        return self.seconds / self.read_s

    @property
    def share(self) -> float | None:
        """Of the verify forward."""
        return None if self.forward_s is None else self.seconds / self.forward_s


def run_sampling_costs(spec: DeploymentSpec, console: Console, json_file: Path | None = None) -> int:
    """Measure, print a table, write `json_file`. Returns an exit status.

    Raises:
        EngineError: the spec's target engine is missing or damaged.
    """
    with console.status("measuring laws and rules"):
        costs = list(sampling_costs(spec.engine_dir("target")))
    for vocab in VOCABULARIES:
        part = [cost for cost in costs if cost.vocab == vocab]
        read_ms, forward_s = part[0].read_s * 1e3, part[0].forward_s
        title = f"{ROWS} rows x K = {DRAFTS}, {vocab:,} tokens: one read of p and q takes {read_ms:.1f} ms"
        if forward_s is not None:
            title += f", the verify forward {forward_s * 1e3:.0f} ms"
        rows = [
            (c.options, f"{c.seconds * 1e3:.1f}", f"{c.reads:.1f}", "" if c.share is None else f"{c.share:.1%}")
            for c in part
        ]
        print_table(console, title, ("options", "ms", "reads", "of the forward"), rows)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n")
    return 0


def sampling_costs(engine: Path | None = None, repeats: int = REPEATS) -> Iterator[SamplingCost]:
    """Measure every option set at every vocabulary; the least of several repeats of each.

    Args:
        engine: folder of an embedded target; its forward is compared with where the vocabulary is its own.
        repeats: of each measurement.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    team = RowTeam(len(os.sched_getaffinity(0)))
    try:
        with torch.inference_mode():
            yield from _costs(engine, repeats, team)
    finally:
        team.close()
        torch.set_num_threads(threads)


def _costs(engine: Path | None, repeats: int, team: RowTeam) -> Iterator[SamplingCost]:
    forward = None if engine is None else _forward_seconds(engine, repeats)
    for vocab in VOCABULARIES:
        logits, q_logits = _world(vocab)
        sent = [torch.log_softmax(row / WARM.temperature, -1).numpy() for row in q_logits]
        p, q = torch.softmax(logits, -1), torch.softmax(q_logits, -1)
        read_s = _least(lambda p=p, q=q: (p.amax(-1), q.amax(-1)), repeats)  # type: ignore[misc]
        del p, q
        drafts = q_logits.argmax(-1).tolist()
        for name, (params, rule) in OPTION_SETS.items():
            calls = [
                VerifyCall(
                    drafts=tuple(drafts[row]),
                    draft_logits=sent[row] if rule in ("token", "block") and not params.greedy else None,
                    sampling=params,
                    rule=rule,
                    seed=row,
                    tokens=np.random.default_rng(row).integers(0, vocab, HISTORY).tolist(),
                )
                for row in range(ROWS)
            ]
            spent = torch.empty_like(logits)

            def prepare(spent: Tensor = spent, logits: Tensor = logits) -> None:
                spent.copy_(logits)

            seconds = _least(lambda calls=calls, x=spent: team.verify(x, calls, True), repeats, prepare)  # type: ignore[misc]
            own = forward[1] if forward is not None and forward[0] == vocab else None
            yield SamplingCost(vocab, name, seconds, read_s, own)


def _world(vocab: int) -> tuple[Tensor, Tensor]:
    """Logits [ROWS, K + 1, vocab] of a target and [ROWS, K, vocab] of its draft, peaked as a language model's are."""
    generator = torch.Generator().manual_seed(0)
    zipf = -1.5 * torch.arange(1, vocab + 1).log()
    order = torch.rand(ROWS, DRAFTS + 1, vocab, generator=generator).argsort(-1)
    logits = zipf[order]
    return logits, logits[:, :DRAFTS] + 0.5 * torch.randn(ROWS, DRAFTS, vocab, generator=generator)


def _forward_seconds(engine: Path, repeats: int) -> tuple[int, float]:
    """Vocabulary of an engine, and seconds of its forward of ROWS rows of DRAFTS + 1 tokens."""
    manifest = Manifest.read(engine)
    limits, config = manifest.limits, ModelConfig.read(engine)
    per_row = -(-(FORWARD_CONTEXT + DRAFTS + 1) // limits.tokens_per_block)
    room = limits.model_copy(update={"kv_blocks": ROWS * per_row})
    decoder = make_decoder(config, load_weights(engine), manifest.dtype, room)
    rows = []
    for row in range(ROWS):
        blocks = list(range(row * per_row, (row + 1) * per_row))
        table = PageTable(limits.tokens_per_block, blocks, FORWARD_CONTEXT)
        rows.append(Row((1,) * (DRAFTS + 1), FORWARD_CONTEXT, table, DRAFTS + 1))
    batch = PackedBatch(tuple(rows))
    seconds = _least(lambda: decoder.forward(batch), repeats)
    decoder.close()
    return config.vocab_size, seconds


def _least(work: Callable[[], object], repeats: int, prepare: Callable[[], object] = int) -> float:
    times = []
    for _ in range(repeats + 1):
        prepare()
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times[1:])
