"""The sampling options of one request, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.errors import InvalidRequestError

MAX_TEMPERATURE = 100.0


@dataclass(frozen=True)
class SamplingParams:
    """Options that shape a law. Off is explicit: top_k 0, top_p 1.0.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: keep the k most probable tokens; 0 keeps all, 1 is greedy.
        top_p: keep the smallest set of tokens whose probability reaches top_p; in (0, 1].

    Raises:
        InvalidRequestError: naming the field, its value and its limit.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.temperature) or not 0.0 <= self.temperature <= MAX_TEMPERATURE:
            raise InvalidRequestError("temperature", self.temperature, f"must be a number in [0, {MAX_TEMPERATURE:g}]")
        if self.top_k < 0:
            raise InvalidRequestError("top_k", self.top_k, "must be 0 (off) or a positive number of tokens")
        if not math.isfinite(self.top_p) or not 0.0 < self.top_p <= 1.0:
            raise InvalidRequestError("top_p", self.top_p, "must be in (0, 1]; 1.0 is off")

    @property
    def greedy(self) -> bool:
        """True where the law is one-hot at the largest logit."""
        return self.temperature == 0.0 or self.top_k == 1


GREEDY = SamplingParams()
