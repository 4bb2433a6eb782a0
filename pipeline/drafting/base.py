"""Draft sources behind one protocol: a drafter starts a session per request, a session makes offers.

An offer is free to make; only the offer that the K controller takes is turned into draft tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.engine.step import FloatArray
from pipeline.engine.waiting import wanted
from pipeline.sampling.params import SamplingParams


@dataclass(frozen=True)
class Offer:
    """Draft tokens that could be had.

    Attributes:
        source: "ngram" or "model".
        key: what acceptance is learnt for: the source, and how good its match is.
        max_k: most tokens it can propose now.
        ready: they were drafted ahead: taking them costs no time.
    """

    source: str
    key: str
    max_k: int
    ready: bool = False


@dataclass(frozen=True)
class Draft:
    """Proposed tokens and the law they were drawn from.

    Attributes:
        source: as in the offer.
        ids: K tokens.
        logits: [K, vocab] log q, or None for a one-hot q.
        ahead: they were drafted while the block before was verified.
    """

    source: str
    ids: tuple[int, ...]
    logits: FloatArray | None = None
    ahead: bool = False


@dataclass(frozen=True)
class DraftContext:
    """What a session knows of its request.

    Attributes:
        request_id: unique in this process.
        prompt_ids: the prompt.
        sampling: the request's options, words as token ids.
        seed: the answer's seed.
        rule: the acceptance rule that drafts will meet.
        arrival: order of the request.
        check: raises where the request is no longer wanted; called while a call is waited for.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    rule: str = "auto"
    arrival: int = 0
    check: Callable[[], None] = wanted


class DraftSession(ABC):
    """Drafts for one request."""

    @abstractmethod
    def extend(self, tokens: Sequence[int]) -> None:
        """Take over committed tokens."""

    @abstractmethod
    def offers(self, limit: int) -> tuple[Offer, ...]:
        """What could be drafted now, the best source first, each at most `limit` tokens."""

    @abstractmethod
    def propose(self, offer: Offer, k: int, round_index: int) -> Draft:
        """Draft k tokens.

        Raises:
            StepError: the draft engine failed or missed its deadline.
        """

    def look_ahead(self, draft: Draft, k: int, round_index: int) -> bool:
        """Begin to draft up to k tokens for the next round, `round_index`, while `draft` is verified.

        Returns:
            False where this source does not.
        """
        return False

    def close(self) -> None:  # noqa: B027
        """The request has ended: let go of what still runs for it."""


class Drafter(ABC):
    """A draft source of a deployment.

    Attributes:
        deterministic: the same text, seed and K give the same drafts, whatever else is computed beside them.
    """

    deterministic: bool = True

    @abstractmethod
    def start(self, context: DraftContext) -> DraftSession:
        """Begin a request."""
