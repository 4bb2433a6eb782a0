"""What options do to a law, in plain numbers: written from their definitions, sharing no code with the pipeline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from in_process_support import LetterTokenizer, Setting, make_config, random_weights

from pipeline.engine.batch import PackedBatch, Row
from pipeline.engine.compiled.decoder import CompiledDecoder
from pipeline.kv_cache.page_table import PageTable
from pipeline.orchestrator.request import GenerationRequest

IMPOSSIBLE = -math.inf


@dataclass(frozen=True)
class Reference:
    """The target of a setting, asked for one position at a time from passes over the whole text.

    Attributes:
        setting: of the deployment.
        request: prompt and options; words are letters.
    """

    setting: Setting
    request: GenerationRequest

    @property
    def end(self) -> int:
        return self.setting.vocab - 1

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(LetterTokenizer(self.setting.vocab).encode(self.request.text_input))

    def logits(self, generated: Sequence[int]) -> list[float]:
        """Raw logits of the token after `generated`."""
        return list(_logits(self.setting, (*self.prompt, *generated)))

    def edited(self, generated: Sequence[int]) -> list[float]:
        """After penalties over prompt and answer, bias, bad words and min_tokens."""
        options, encode = self.request.sampling, LetterTokenizer(self.setting.vocab).encode
        history = [*self.prompt, *generated]
        values = self.logits(generated)
        for token in set(history):
            factor = options.repetition_penalty
            values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
            values[token] -= options.presence_penalty + options.frequency_penalty * history.count(token)
        for word, weight in self.request.embedding_bias:
            for token in encode(word):
                values[token] += weight
        for word in self.request.bad_words:
            *before, last = encode(word)
            if history[len(history) - len(before) :] == before:
                values[last] = IMPOSSIBLE
        if len(generated) < self.request.min_tokens:
            values[self.end] = IMPOSSIBLE
        return values

    def law(self, generated: Sequence[int]) -> dict[int, float]:
        """Probability of each possible next token."""
        options = self.request.sampling
        values = [value / options.temperature for value in self.edited(generated)]
        best = max(values)
        order = sorted(range(len(values)), key=lambda token: -values[token])[: options.top_k or None]
        weights = {token: math.exp(values[token] - best) for token in order}
        total = sum(weights.values())
        kept: dict[int, float] = {}
        for token in order:
            if sum(kept.values()) >= options.top_p:
                break
            kept[token] = weights[token] / total
        limit = options.min_p * max(kept.values())
        kept = {token: mass for token, mass in kept.items() if mass >= limit and mass > 0}
        whole = sum(kept.values())
        return {token: mass / whole for token, mass in kept.items()}

    def greedy(self) -> tuple[str, str]:
        """Text and finish reason at temperature 0.

        Raises:
            AssertionError: two tokens are so close that rounding could decide.
        """
        generated: list[int] = []
        tokenizer = LetterTokenizer(self.setting.vocab)
        while len(generated) < self.request.max_tokens:
            values = self.edited(generated)
            token = max(range(len(values)), key=values.__getitem__)
            second = max(value for other, value in enumerate(values) if other != token)
            assert values[token] - second > 1e-4, "a tie: take another seed"
            if token == self.end:
                return tokenizer.decode(generated), "eos"
            generated.append(token)
        return tokenizer.decode(generated), "length"

    def log_prob(self, generated: Sequence[int], token: int) -> float:
        """Of a token under the target's own softmax, before any option."""
        values = self.logits(generated)
        best = max(values)
        return values[token] - best - math.log(sum(math.exp(value - best) for value in values))

    def answers(self, length: int) -> dict[tuple[int, ...], float]:
        """Probability of each beginning of the answer, of `length` tokens or ended by the end token."""
        law: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(length):
            longer: dict[tuple[int, ...], float] = {}
            for ids, mass in law.items():
                if ids and ids[-1] == self.end:
                    longer[ids] = mass
                    continue
                for token, p in self.law(ids).items():
                    longer[(*ids, token)] = mass * p
            law = longer
        return law


@lru_cache
def _decoder(setting: Setting) -> CompiledDecoder:
    config = make_config(setting.vocab, setting.hidden, setting.layers)
    weights = random_weights(config, setting.seed, setting.sharpness)
    return CompiledDecoder(config, weights, "float32", setting.max_seq_len, setting.max_seq_len, 1)


@lru_cache(maxsize=100_000)
def _logits(setting: Setting, ids: tuple[int, ...]) -> tuple[float, ...]:
    row = Row(ids, 0, PageTable(1, list(range(setting.max_seq_len))), 1)
    (logits,) = _decoder(setting).forward(PackedBatch((row,)))
    return tuple(logits.double().tolist())
