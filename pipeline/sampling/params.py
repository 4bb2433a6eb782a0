"""The sampling options of one request, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.errors import InvalidRequestError

MAX_TEMPERATURE = 100.0
# 0.01 as a client sends it: in float32.
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.009999999776482582, 100.0
MAX_PENALTY = 100.0
MAX_BIAS = 1e9
"""Far beyond any logit: a bias of this size forbids or forces its token, and float32 still holds the sum."""

TRUNCATIONS = ("temperature", "top_k", "top_p", "min_p")
"""Options that act on the law, and mean nothing to a greedy choice."""
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
WORDS = ("logit_bias", "bad_words")
"""Options that name tokens."""
OPTIONS = (*TRUNCATIONS, *PENALTIES, *WORDS)
"""Names of all options: what an engine's capabilities list."""


def tensorrt_divisor(temperature: float) -> float:
    """What TensorRT-LLM 1.2 divides logits by (`kernels/penaltyKernels.cu`): nothing at 1, else T + 1e-6."""
    return 1.0 if temperature == 1.0 else temperature + 1e-6


@dataclass(frozen=True)
class SamplingParams:
    """Options that shape a law, in the order in which they act. Off is explicit: top_k 0, top_p 1.0.

    The history of the penalties and of bad words is every token before the position, prompt included, as in
    TensorRT-LLM.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k most probable tokens; 0 keeps all, 1 is greedy.
        top_p: keep the smallest set of tokens whose probability reaches top_p; in (0, 1].
        min_p: then drop tokens less probable than min_p times the most probable one; in [0, 1], 0 is off.
        repetition_penalty: logits of tokens in the history are divided by it where positive, multiplied where
            negative (Keskar et al., arXiv 1909.05858); in [0.01, 100], 1 is off.
        presence_penalty: subtracted from the logit of each token in the history; in [-100, 100].
        frequency_penalty: subtracted as often as the token is there; in [-100, 100].
        logit_bias: (token id, weight) added to the logits; weights of one id add up; each in [-1e9, 1e9].
        bad_words: token sequences; the last token of one is impossible after the ones before it.

    Raises:
        InvalidRequestError: naming the field, its value and its limit.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        if self.top_k < 0:
            raise InvalidRequestError("top_k", self.top_k, "must be 0 (off) or a positive number of tokens")
        if not math.isfinite(self.top_p) or not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError("top_p", self.top_p, "must be in (0, 1]; 1.0 is off")
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        _within("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _within("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        for token, weight in self.logit_bias:
            if token < 0:
                raise InvalidRequestError("logit_bias", token, "token ids are 0 or more")
            _within("logit_bias", weight, -MAX_BIAS, MAX_BIAS)
        for word in self.bad_words:
            if not word or min(word) < 0:
                raise InvalidRequestError("bad_words", list(word), "each must hold one token id or more, 0 or above")

    @property
    def greedy(self) -> bool:
        """True where the law is one-hot at the largest logit."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """True where the law depends on how often tokens are in the history."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def edited(self) -> bool:
        """True where logits are changed before the temperature."""
        return self.penalised or bool(self.logit_bias or self.bad_words)


def _within(field: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequestError(field, value, f"must be a number in [{low:g}, {high:g}]")


GREEDY = SamplingParams()
