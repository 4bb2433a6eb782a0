"""What a client asks for, and what it is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.statistics import RequestStatistics, RoundRecord
from pipeline.sampling.params import GREEDY, MAX_BIAS, SamplingParams

MAX_WORDS = 64
MAX_BIAS_WORDS = 1024
MAX_WORD_CHARS = 1024
MAX_RETURN_SEQUENCES = 64
DEFAULT_MAX_TOKENS = 64

EACH_ROUND, EACH_TOKEN = "round", "each"
STREAM_TOKENS = (EACH_ROUND, EACH_TOKEN)


@dataclass(frozen=True)
class GenerationRequest:
    """One request, with the input names of NVIDIA's `tensorrt_llm_bls` model.

    Attributes:
        text_input: the prompt; must not be empty.
        max_tokens: tokens to generate at most, at least 1.
        sampling: temperature, top_k, top_p, min_p, penalties; bias and bad words that are given as token ids.
        seed: None draws one from the operating system.
        stop_words: texts that end the answer; the stop word itself is not returned.
        end_id: the token that ends the answer; None takes the model's own, -1 none.
        stream: send a chunk per round; otherwise one chunk with everything.
        exclude_input_in_output: false puts the prompt before the answer (not when streaming), as NVIDIA's does.
        return_perf_metrics: send a RoundRecord with every streamed round.
        num_draft_tokens: 0 decodes plainly, n fixes K, None lets the controller decide.
        acceptance_rule: a rule the target offers, or "auto".
        chat: apply the model's chat template to the prompt.
        request_id: the client's own name for the request; any text.
        min_tokens: the end token is impossible before so many tokens; stop words are not held back by it.
        bad_words: texts whose tokens may not be completed, with and without a space before them.
        embedding_bias: (word, weight): weight is added to the logit of every token of the word.
        return_log_probs: send the log-probability of every committed token.
        num_return_sequences: answers to give, one after another, each with a seed of its own.
        stream_tokens: "round" streams a chunk per round, "each" one per token.
        waited_s: seconds from its arrival at a server to its turn.
        timeout: microseconds from its arrival that it may take, waiting included; 0: any time.
        priority: level in the waiting line, 1 is served first; 0 takes the deployment's default.
        on_round: called with (sequence, record) by the thread that decodes when a round was committed; for traces
            alone. Must be quick and never raise.
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
    min_tokens: int = 0
    bad_words: tuple[str, ...] = ()
    embedding_bias: tuple[tuple[str, float], ...] = ()
    return_log_probs: bool = False
    num_return_sequences: int = 1
    stream_tokens: str = EACH_ROUND
    waited_s: float = 0.0
    timeout: int = 0
    priority: int = 0
    on_round: Callable[[int, RoundRecord], None] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _require(self.text_input != "", "text_input", self.text_input, "must not be empty")
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "must be at least 1")
        limit = f"must be between 0 and max_tokens = {self.max_tokens}"
        _require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, limit)
        _require(
            self.seed is None or 0 <= self.seed < 1 << 64, "seed", self.seed, "must fit an unsigned 64-bit integer"
        )
        k = self.num_draft_tokens
        _require(k is None or k >= 0, "num_draft_tokens", k, "must be 0 or more")
        limit = f"must be between 1 and {MAX_RETURN_SEQUENCES}"
        _require(
            1 <= self.num_return_sequences <= MAX_RETURN_SEQUENCES,
            "num_return_sequences",
            self.num_return_sequences,
            limit,
        )
        limit = f"must be one of {', '.join(STREAM_TOKENS)}"
        _require(self.stream_tokens in STREAM_TOKENS, "stream_tokens", self.stream_tokens, limit)
        if self.stream_tokens != EACH_ROUND:
            _require(self.stream, "stream_tokens", self.stream_tokens, "needs stream = true")
        _require(self.timeout >= 0, "timeout", self.timeout, "must be 0 (none) or more microseconds")
        _check_words("stop_words", self.stop_words, MAX_WORDS)
        _check_words("bad_words", self.bad_words, MAX_WORDS)
        _check_words("embedding_bias_words", [word for word, _ in self.embedding_bias], MAX_BIAS_WORDS)
        for _, weight in self.embedding_bias:
            limit = f"must be a number in [{-MAX_BIAS:g}, {MAX_BIAS:g}]"
            _require(abs(weight) <= MAX_BIAS, "embedding_bias_weights", weight, limit)  # NaN fails, too


def _require(good: bool, name: str, value: object, limit: str) -> None:
    if not good:
        raise InvalidRequestError(name, value, limit)


def _check_words(name: str, words: tuple[str, ...] | list[str], most: int) -> None:
    _require(len(words) <= most, name, f"{len(words)} words", f"at most {most}")
    for word in words:
        limit = f"each must have 1 to {MAX_WORD_CHARS} characters"
        _require(0 < len(word) <= MAX_WORD_CHARS, name, word[:32], limit)


@dataclass(frozen=True)
class Chunk:
    """One piece of an answer.

    Attributes:
        text: new text; the whole text where the request does not stream.
        token_ids: committed tokens that this chunk adds (their text may still be held back).
        round: how this chunk's round went; None where the request did not ask.
        finish_reason: "stop", "eos", "length", "cancelled" or "timeout" on the last chunk of an answer, else None.
        statistics: on the last chunk of an answer.
        log_probs: one per token of `token_ids`, under the target's law before sampling options; () unless asked for.
        cum_log_prob: sum of the answer's log-probabilities up to here; None unless asked for.
        sequence_index: which of num_return_sequences answers this is a piece of.
    """

    text: str
    token_ids: tuple[int, ...] = field(default=())
    round: RoundRecord | None = None
    finish_reason: str | None = None
    statistics: RequestStatistics | None = None
    log_probs: tuple[float, ...] = ()
    cum_log_prob: float | None = None
    sequence_index: int = 0

    @property
    def final(self) -> bool:
        return self.finish_reason is not None
