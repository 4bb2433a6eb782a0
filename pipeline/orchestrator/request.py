"""What a client asks for, and what it is sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.statistics import RequestStatistics, RoundRecord
from pipeline.sampling.params import GREEDY, SamplingParams

MAX_STOP_WORDS = 64
MAX_STOP_WORD_CHARS = 1024
DEFAULT_MAX_TOKENS = 64


@dataclass(frozen=True)
class GenerationRequest:
    """One request, with the input names of NVIDIA's `tensorrt_llm_bls` model.

    Attributes:
        text_input: the prompt; must not be empty.
        max_tokens: tokens to generate at most, at least 1.
        sampling: temperature, top_k, top_p.
        seed: None draws one from the operating system.
        stop_words: texts that end the answer; the stop word itself is not returned.
        end_id: the token that ends the answer; None takes the model's own.
        stream: send a chunk per round; otherwise one chunk with everything.
        exclude_input_in_output: false puts the prompt before the answer (not when streaming), as NVIDIA's does.
        return_perf_metrics: send a RoundRecord with every streamed chunk.
        num_draft_tokens: 0 decodes plainly, n fixes K, None lets the controller decide.
        acceptance_rule: a rule the target offers, or "auto".
        chat: apply the model's chat template to the prompt.
        request_id: the client's own name for the request; any text.
    """

    text_input: str
    max_tokens: int = DEFAULT_MAX_TOKENS
    sampling: SamplingParams = GREEDY
    seed: int | None = None
    stop_words: tuple[str, ...] = ()
    end_id: int | None = None
    stream: bool = False
    exclude_input_in_output: bool = False
    return_perf_metrics: bool = False
    num_draft_tokens: int | None = None
    acceptance_rule: str = "auto"
    chat: bool = False
    request_id: str = ""

    def __post_init__(self) -> None:
        if not self.text_input:
            raise InvalidRequestError("text_input", self.text_input, "must not be empty")
        if self.max_tokens < 1:
            raise InvalidRequestError("max_tokens", self.max_tokens, "must be at least 1")
        if self.seed is not None and not 0 <= self.seed < 1 << 64:
            raise InvalidRequestError("seed", self.seed, "must fit an unsigned 64-bit integer")
        if self.num_draft_tokens is not None and self.num_draft_tokens < 0:
            raise InvalidRequestError("num_draft_tokens", self.num_draft_tokens, "must be 0 or more")
        if len(self.stop_words) > MAX_STOP_WORDS:
            raise InvalidRequestError("stop_words", f"{len(self.stop_words)} words", f"at most {MAX_STOP_WORDS}")
        for word in self.stop_words:
            if not word or len(word) > MAX_STOP_WORD_CHARS:
                raise InvalidRequestError(
                    "stop_words", word[:32], f"each must have 1 to {MAX_STOP_WORD_CHARS} characters"
                )


@dataclass(frozen=True)
class Chunk:
    """One piece of an answer.

    Attributes:
        text: new text; the whole text where the request does not stream.
        token_ids: committed tokens that this chunk adds (their text may still be held back).
        round: how this chunk's round went; None where the request did not ask.
        finish_reason: "stop", "eos", "length" or "cancelled" on the last chunk, else None.
        statistics: on the last chunk.
    """

    text: str
    token_ids: tuple[int, ...] = field(default=())
    round: RoundRecord | None = None
    finish_reason: str | None = None
    statistics: RequestStatistics | None = None

    @property
    def final(self) -> bool:
        return self.finish_reason is not None
