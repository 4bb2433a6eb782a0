"""The target writes text: many sequences at a time, each in a slot of a static KV cache.

A finished sequence gives its slot to the next prompt, so that short answers do not wait for long ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.distillation.llama import Llama, fastest_dtype
from pipeline.engine.model_config import ModelConfig
from pipeline.engine.weights import CheckpointReader

TOP = 64
"""Tokens of the target's law that are kept per position; the rest of the mass is left out of training."""
PREFILL_ROWS = 16
ROUND = 32  # the cache is read up to a multiple of this


@dataclass(frozen=True)
class Job:
    """A sequence to write.

    Attributes:
        name: the caller's; comes back with the text.
        prompt: token ids.
        temperature: 0 is greedy.
        max_tokens: where the text ends, unless the end token comes first.
    """

    name: str
    prompt: list[int]
    temperature: float
    max_tokens: int


@dataclass(frozen=True)
class Text:
    """What the target wrote for a job, with its law at every position.

    Attributes:
        output: token ids [n]; the end token is among them.
        top_ids: [n, TOP] int32, most likely first.
        top_log_probs: [n, TOP] float16, at temperature 1, normalised over the whole vocabulary.
    """

    job: Job
    output: list[int]
    top_ids: Tensor
    top_log_probs: Tensor


@dataclass
class _Slot:
    job: Job
    output: list[int]
    ids: list[Tensor]
    log_probs: list[Tensor]


class Target:
    """A frozen model that writes.

    Args:
        folder: a Hugging Face folder.
        device: where it computes.
        positions: longest sequence, prompt included.
        dtype: type of the products; None measures which is faster.
    """

    def __init__(self, folder: Path, device: torch.device, positions: int, dtype: torch.dtype | None = None) -> None:
        self.config = ModelConfig.read(folder)
        read = CheckpointReader(folder)
        self.device = device
        self.dtype = fastest_dtype(device) if dtype is None else dtype
        self.positions = positions
        self.layers = Llama(self.config, read, list(range(self.config.num_layers)), positions)
        self.layers.compute_in(self.dtype, frozen=True)
        self.layers.to(device)
        self.embedding = read("model.embed_tokens.weight").to(device)
        head = self.embedding if self.config.tie_word_embeddings else read("lm_head.weight").to(device)
        self.head = head.float()  # [vocab, hidden]
        self._fast_head = head.to(self.dtype)

    def law(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The law after hidden states [n, hidden].

        Returns:
            logits [n, vocab] in the compute type, top ids [n, TOP], their logits [n, TOP] FP32, sorted. Only the
            latter are exact enough to tell the first from the second.
        """
        logits = functional.linear(hidden.to(self.dtype), self._fast_head)
        ids = logits.topk(min(TOP, logits.shape[-1]), sorted=False).indices
        exact = torch.bmm(self.head[ids], hidden.float()[:, :, None])[:, :, 0]
        exact, order = exact.sort(descending=True)
        return logits, ids.gather(1, order), exact


class Writer:
    """Runs jobs on a target.

    Args:
        slots: sequences at a time.
        seed: of all draws.
    """

    def __init__(self, target: Target, slots: int, seed: int) -> None:
        self._target = target
        config = target.config
        shape = (config.num_layers, slots, config.num_kv_heads, target.positions, config.head_dim)
        self._keys = torch.zeros(shape, dtype=target.dtype, device=target.device)
        self._values = torch.zeros(shape, dtype=target.dtype, device=target.device)
        self._slots: list[_Slot | None] = [None] * slots
        self._filled = torch.zeros(slots, dtype=torch.int64)  # tokens whose KV a slot holds
        self._last = torch.zeros(slots, dtype=torch.int64)
        self._temperatures = torch.zeros(slots)
        self._generator = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def write(self, jobs: Iterator[Job]) -> Iterator[Text]:
        """Texts in the order in which they end; jobs are drawn as slots become free."""
        more = True
        while True:
            free = [i for i, slot in enumerate(self._slots) if slot is None]
            if more and len(free) >= max(1, len(self._slots) // 8):
                taken = list(islice(jobs, len(free)))
                more = len(taken) == len(free)
                taken.sort(key=lambda job: len(job.prompt))  # neighbours in length are padded least
                for first in range(0, len(taken), PREFILL_ROWS):
                    group = taken[first : first + PREFILL_ROWS]
                    yield from self._prefill(free[first : first + len(group)], group)
            if all(slot is None for slot in self._slots):
                if not more:
                    return
                continue
            yield from self._step()

    def _prefill(self, rows: list[int], jobs: list[Job]) -> Iterator[Text]:
        target, index = self._target, torch.tensor(rows)
        lengths = torch.tensor([len(job.prompt) for job in jobs])
        ids = torch.zeros(len(jobs), int(lengths.max()), dtype=torch.int64)
        for row, job in enumerate(jobs):
            ids[row, : len(job.prompt)] = torch.tensor(job.prompt)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, index, :, : k.shape[2]] = k
            self._values[layer, index, :, : k.shape[2]] = v
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        x = target.embedding[ids.to(target.device)].float()
        hidden = target.layers(x, torch.arange(ids.shape[1], device=target.device)[None], attend)
        for row, job in zip(rows, jobs, strict=True):
            self._slots[row] = _Slot(job, [], [], [])
            self._temperatures[row] = job.temperature
        self._filled[index] = lengths
        yield from self._commit(rows, hidden[torch.arange(len(jobs)), lengths - 1])

    def _step(self) -> Iterator[Text]:
        """One token for every slot. Free slots compute along: leaving them out would copy the cache of the others."""
        target, config = self._target, self._target.config
        rows = [i for i, slot in enumerate(self._slots) if slot is not None]
        positions = self._filled.to(target.device)
        used = min(-(-(int(self._filled[rows].max()) + 1) // ROUND) * ROUND, target.positions)
        groups = config.num_heads // config.num_kv_heads
        seen = (torch.arange(used, device=target.device) <= positions[:, None])[:, None, None]
        seen = seen.expand(-1, 1, groups, -1)  # [slots, 1, groups, used]
        everywhere = torch.arange(len(self._slots), device=target.device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._keys[layer], self._values[layer]
            keys[everywhere, :, positions] = k[:, :, 0]
            values[everywhere, :, positions] = v[:, :, 0]
            # Query heads of one KV head stand side by side as if they were positions: KV is never expanded.
            grouped = q.reshape(q.shape[0], config.num_kv_heads, groups, config.head_dim)
            mixed = functional.scaled_dot_product_attention(
                grouped, keys[:, :, :used], values[:, :, :used], attn_mask=seen
            )
            return mixed.reshape(q.shape)

        x = target.embedding[self._last.to(target.device)].float()[:, None]
        hidden = target.layers(x, positions[:, None], attend)[:, 0]
        self._filled[rows] += 1
        yield from self._commit(rows, hidden if len(rows) == len(self._slots) else hidden[rows])

    def _commit(self, rows: list[int], hidden: Tensor) -> Iterator[Text]:
        """Draw a token for each row from its hidden state [n, hidden]; yield the texts that end with it."""
        logits, ids, top = self._target.law(hidden)
        log_probs = (top - logits.float().logsumexp(-1, keepdim=True)).half().cpu()
        tokens = self._draw(logits, ids, top, self._temperatures[rows])
        ids32 = ids.int().cpu()
        for i, row in enumerate(rows):
            slot = self._slots[row]
            assert slot is not None
            token = int(tokens[i])
            slot.output.append(token)
            slot.ids.append(ids32[i])
            slot.log_probs.append(log_probs[i])
            self._last[row] = token
            full = len(slot.job.prompt) + len(slot.output) >= self._target.positions
            if token == self._target.config.eos_id or len(slot.output) >= slot.job.max_tokens or full:
                self._slots[row] = None
                self._filled[row] = 0
                yield Text(slot.job, slot.output, torch.stack(slot.ids), torch.stack(slot.log_probs))

    def _draw(self, logits: Tensor, ids: Tensor, top: Tensor, temperatures: Tensor) -> Tensor:
        """One token per row, [n] int64 on the CPU: from the top tokens, or from the tail if the draw falls there."""
        tokens = ids[:, 0].cpu()
        rows = (temperatures > 0).nonzero()[:, 0]
        if rows.numel() == 0:
            return tokens
        there = rows.to(logits.device)
        scale = temperatures[rows].to(logits.device)[:, None]
        scaled = logits[there].float() / scale
        law = (top[there] / scale - scaled.logsumexp(-1, keepdim=True)).exp()
        edges = law.cumsum(-1).cpu()
        drawn = torch.rand(rows.numel(), 1, generator=self._generator)
        place = torch.searchsorted(edges, drawn)[:, 0]
        inside = place < edges.shape[1]
        picked = ids[there].cpu().gather(1, place.clamp(max=edges.shape[1] - 1)[:, None])[:, 0]
        tail = (~inside).nonzero()[:, 0]
        if tail.numel():
            rest = scaled[tail.to(logits.device)].scatter(1, ids[there[tail.to(logits.device)]], float("-inf"))
            if bool(rest.isfinite().any(-1).all()):
                # By the inverse of the distribution function: torch.multinomial takes 50 ms for this on a CPU.
                sums = rest.double().softmax(-1).cumsum(-1).cpu()
                drawn = torch.rand(tail.numel(), 1, generator=self._generator, dtype=torch.float64)
                picked[tail] = torch.searchsorted(sums, drawn * sums[:, -1:], right=True)[:, 0]
        tokens[rows] = picked
        return tokens
