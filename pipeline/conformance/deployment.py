"""What conformance asks of a deployment: answers to requests, and its target's scores of the next token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.client.triton_client import Reply
from pipeline.engine.step import FloatArray
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams

Ids = tuple[int, ...]
Json = dict[str, Any]


class TextCodec(Protocol):
    """The target's tokenizer, as far as conformance needs it."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Answer:
    """One whole answer.

    Attributes:
        text: without the prompt.
        token_ids: committed tokens; never the end token.
        finish_reason: stop, eos, length or cancelled.
        statistics: `spec_decode_stats`.
        rounds: a RoundRecord per round, where the request asked for them.
        log_probs: of each token, where the request asked for them.
        cum_log_prob: their sum, where the request asked for it.
    """

    text: str
    token_ids: Ids
    finish_reason: str
    statistics: Json
    rounds: tuple[Json, ...] = ()
    log_probs: tuple[float, ...] = ()
    cum_log_prob: float | None = None


class Deployment(ABC):
    """A running deployment. Methods are called from many threads at once.

    Attributes:
        name: what the report calls it.
        tokenizer: the target's; None where it is not known, and with it no teacher forcing.
    """

    name: str
    tokenizer: TextCodec | None

    @abstractmethod
    def ask(self, request: GenerationRequest) -> Answer:
        """Answer one request.

        Raises:
            SpecDecodeError: the deployment refused or failed it, in its own words.
        """

    @abstractmethod
    def next_scores(self, prefix: Ids, sampling: SamplingParams) -> FloatArray:
        """[vocab] the target's `generation_logits` of the token behind `prefix`: raw, or a log law under `sampling`.

        Raises:
            SpecDecodeError: the target cannot be reached, or gives no logits.
        """


def join(replies: Iterable[Reply]) -> Answer:
    """The whole of a streamed answer."""
    parts = list(replies)
    last = parts[-1]
    assert last.finish_reason is not None and last.statistics is not None, "an answer ends with its statistics"
    return Answer(
        text="".join(part.text for part in parts),
        token_ids=tuple(token for part in parts for token in part.token_ids),
        finish_reason=last.finish_reason,
        statistics=last.statistics,
        rounds=tuple(part.round for part in parts if part.round is not None),
        log_probs=tuple(value for part in parts for value in part.log_probs),
        cum_log_prob=last.cum_log_prob,
    )
