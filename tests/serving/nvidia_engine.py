"""A stand-in for a TensorRT-LLM 1.2 engine: what is known of its decoder, over a small random model.

Written from the facts (the public source of `externalDraftTokensLayer`, `penaltyKernels`, `llmRequest` and
`trtGptModelInflightBatching`), with nothing of this project in it, so that the adapter and its judge cannot be wrong
in the same way. Not a copy of its speed, memory or numerics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

TOP_K_MAX = 1024
Law = np.ndarray  # [padded] float64


class EngineError(Exception):
    """What the executor throws; everything arrives as one text."""


class Dice(Protocol):
    """Where a decoder's random choices come from."""

    def pick(self, masses: Sequence[float]) -> int:
        """An index, with probability in proportion to its mass."""
        ...


class SeededDice:
    """One generator per request, started anew from its seed."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def pick(self, masses: Sequence[float]) -> int:
        sums = np.cumsum(masses)
        return int(np.searchsorted(sums, self._generator.random() * sums[-1], side="right"))


@dataclass(frozen=True)
class Options:
    """Sampling inputs as they arrive; None where absent."""

    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    bias: np.ndarray | None = None  # [vocab]
    bad_words: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Call:
    """One executor request."""

    input_ids: tuple[int, ...]
    max_new: int
    options: Options = Options()
    draft_ids: tuple[int, ...] = ()
    draft_logits: np.ndarray | None = None  # [K, padded]
    end_id: int | None = None


@dataclass(frozen=True)
class Answer:
    """What comes back.

    Attributes:
        output_ids: new tokens, without the end token.
        drafted: drafts that were in the pass.
        logits: [new, padded]: raw, with what the padding rows of the head give.
    """

    output_ids: tuple[int, ...]
    drafted: int
    logits: np.ndarray


@dataclass(frozen=True)
class Engine:
    """A compiled engine and its executor.

    Attributes:
        vocab: tokens it knows; `padded` columns leave it, the rest never drawn by itself.
        seed: of its weights; `tilt` mixes in those of another seed: a draft of that model.
        max_draft_len: 0: not built for drafts.
        max_seq_len: as the builder leaves it: the user's, plus max_draft_len.
        dropped: drafts that the scheduler has no room for, of every verify.
    """

    vocab: int
    padded: int
    seed: int
    tilt: float = 0.0
    max_draft_len: int = 0
    max_seq_len: int = 64
    max_input_len: int = 48
    dropped: int = 0

    def raw_logits(self, history: Sequence[int]) -> np.ndarray:
        """[padded] float32: a function of the last two tokens; the empty rows of the head give 0 where padded."""
        context = [*history][-2:]
        logits = self._random(self.seed, context)
        if self.tilt:
            logits = (1 - self.tilt) * logits + self.tilt * self._random(self.seed + 1, context)
        padded = np.zeros(self.padded, np.float32)
        padded[: self.vocab] = logits[: self.vocab]
        return padded

    @staticmethod
    def _random(seed: int, context: Sequence[int]) -> np.ndarray:
        return np.random.Generator(np.random.PCG64([seed, *context])).normal(0.0, 1.3, 32)

    def run(self, call: Call, dice: Dice) -> Answer:
        """Decode a request to its end.

        Raises:
            EngineError: in the executor's words.
        """
        max_new, drafts = self._admit(call)
        output: list[int] = []
        rows: list[np.ndarray] = []
        ended = False
        accepted = 0
        while not ended and accepted < len(drafts):
            token, kept = self._judge(call, output, accepted, drafts, dice)
            ended = self._commit(call, output, rows, token)
            if not kept:
                return Answer(tuple(output), len(drafts), self._stack(rows))
            accepted += 1
        # A request with drafts ends in the iteration that took them; one without goes on by itself.
        left = 1 if drafts else max_new
        while not ended and left > 0:
            ended = self._commit(call, output, rows, dice.pick(self.law(call, output)))
            left -= 1
        return Answer(tuple(output), len(drafts), self._stack(rows))

    def _stack(self, rows: list[np.ndarray]) -> np.ndarray:
        return np.stack(rows) if rows else np.zeros((0, self.padded), np.float32)

    def _admit(self, call: Call) -> tuple[int, tuple[int, ...]]:
        prompt, drafts = len(call.input_ids), call.draft_ids
        if prompt > self.max_input_len:
            raise EngineError(f"Prompt length ({prompt}) exceeds maximum input length ({self.max_input_len}). Set log")
        if len(drafts) > self.max_draft_len:
            raise EngineError(
                f"Draft tokens length ({len(drafts)}) exceeds maximum draft tokens length ({self.max_draft_len})."
            )
        if call.draft_logits is not None and call.draft_logits.shape != (len(drafts), self.padded):
            found, own = call.draft_logits.size * 4, len(drafts) * self.padded * 4
            raise EngineError(
                "Encountered an error in forwardAsync function: [TensorRT-LLM][ERROR] Assertion failed: Incompatible "
                f"buffer sizes: {found} != {own} (/src/bufferManager.cpp:99)\n1  0x7f libtensorrt_llm.so(+0x1)\n2  0x7f"
            )
        if call.options.bias is not None and call.options.bias.shape != (self.vocab,):
            raise EngineError(f"The embedding bias tensor must have {self.vocab} elements")
        per_step = len(drafts) or self.max_draft_len
        max_new = min(call.max_new, self.max_seq_len - prompt - per_step)
        drafts = drafts[: max(0, self.max_input_len - prompt)]
        return max_new, drafts[: max(0, len(drafts) - self.dropped)]

    def _judge(self, call: Call, output: list[int], at: int, drafts: tuple[int, ...], dice: Dice) -> tuple[int, bool]:
        """The token at a draft's place, and whether it is the draft."""
        law, draft = self.law(call, output), drafts[at]
        if call.draft_logits is None:
            if dice.pick(law) == draft:
                return draft, True
            return dice.pick(law), False  # another draw of the whole law, not the one that was compared
        q = np.exp(call.draft_logits[at].astype(np.float64) - call.draft_logits[at].max())
        q /= q.sum()
        keep = min(1.0, law[draft] / q[draft]) if q[draft] > 0 else float(law[draft] > 0)
        if dice.pick([keep, 1.0 - keep]) == 0:
            return draft, True
        return dice.pick(np.maximum(law - q, 0.0)), False

    def _commit(self, call: Call, output: list[int], rows: list[np.ndarray], token: int) -> bool:
        """True at the end token, which is never part of the output."""
        if token == call.end_id:
            return True
        rows.append(self.raw_logits((*call.input_ids, *output)))
        output.append(token)
        return False

    def law(self, call: Call, output: Sequence[int]) -> Law:
        """What the next token is drawn from: bias, temperature, penalties, then top-k and top-p."""
        options, history = call.options, [*call.input_ids, *output]
        x = self.raw_logits(history).astype(np.float64)
        x[self.vocab :] = -math.inf
        if options.bias is not None:
            x[: self.vocab] += options.bias
        temperature = 1.0 if options.temperature is None else options.temperature
        if temperature != 1.0:
            x /= temperature + 1e-6
        for token in set(history):
            count = history.count(token)
            factor = options.repetition_penalty or 1.0
            x[token] = x[token] * factor if x[token] < 0 else x[token] / factor
            x[token] -= (options.presence_penalty or 0.0) + count * (options.frequency_penalty or 0.0)
        if call.end_id is not None and len(output) < (options.min_tokens or 0):
            x[call.end_id] = -math.inf
        for word in options.bad_words:
            before = list(word[:-1])
            if history[len(history) - len(before) :] == before:
                x[word[-1]] = -math.inf
        return _truncated(x, options.top_k or 0, options.top_p or 0.0)


def _truncated(x: np.ndarray, top_k: int, top_p: float) -> Law:
    """Both off, or both absent, is the most probable token."""
    if top_k == 0 and top_p == 0.0:
        top_k = 1
    order = np.argsort(-x, kind="stable")[: min(top_k, TOP_K_MAX) or None]
    masses = np.exp(x[order] - x[order[0]])
    masses /= masses.sum()
    if 0.0 < top_p < 1.0:
        kept = int(np.searchsorted(np.cumsum(masses), top_p)) + 1
        order, masses = order[:kept], masses[:kept]
    law = np.zeros(len(x))
    law[order] = masses / masses.sum()
    return law
