"""Teacher forcing: the target's own law behind any text, from its `generation_logits`."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from pipeline.conformance.deployment import Deployment, Ids
from pipeline.conformance.reference import Law, Probabilities, edited_scores, law_of, log_softmax
from pipeline.engine.step import FloatArray
from pipeline.errors import SpecDecodeError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.text.tokenizer import Tokenizer
from pipeline.text.words import bad_word_ids, bias_by_id

PLAIN = SamplingParams(temperature=1.0)
LOG_LAW_TOLERANCE = 0.01


@dataclass(frozen=True)
class Unavailable:
    """Why there is no teacher forcing."""

    reason: str


class Teacher:
    """Scores of a deployment's target, fetched once per text.

    An engine whose `generation_logits` are raw gives everything; one that gives log laws is asked at temperature 1
    with no option, and its laws are made here. Its repetition penalty alone acts on the sign of raw logits, which a
    log law has lost: there the engine is asked for its law with that penalty.

    Args:
        deployment: with a tokenizer.
        pool: fetches in parallel.
    """

    def __init__(self, deployment: Deployment, pool: Executor) -> None:
        assert deployment.tokenizer is not None
        self._deployment = deployment
        self._tokenizer = deployment.tokenizer
        self._pool = pool
        self._scores: dict[tuple[Ids, float], FloatArray] = {}
        self._laws: dict[tuple[Ids, SamplingParams, int | None], Law] = {}
        self._lock = threading.Lock()
        first = self._fetch((*self._tokenizer.encode("A"),), 1.0)
        total = float(np.logaddexp.reduce(first.astype(np.float64)))
        self.gives_raw_logits = abs(total) > LOG_LAW_TOLERANCE

    def prompt_ids(self, request: GenerationRequest) -> Ids:
        """The prompt as the deployment tokenizes it."""
        if request.chat:
            text = cast(Tokenizer, self._tokenizer).apply_chat_template(request.text_input)
            return tuple(self._tokenizer.encode(text, add_special_tokens=False))
        return tuple(self._tokenizer.encode(request.text_input))

    def law(self, request: GenerationRequest, said: Ids) -> Law:
        """The law of the next token of a request that samples.

        Args:
            request: whose options shape the law.
            said: committed so far, the prompt not included.
        """
        history = (*self.prompt_ids(request), *said)
        options = self._options(request)
        held = request.end_id if len(said) < request.min_tokens else None
        key = (history, options, held)
        if key not in self._laws:
            self._laws[key] = law_of(self._edited(history, options, held), options)
        return self._laws[key]

    def fetch(self, request: GenerationRequest, texts: Iterable[Ids]) -> None:
        """Get the laws behind many texts at once."""
        list(self._pool.map(lambda said: self.law(request, said), texts))

    def margin(self, request: GenerationRequest, said: Ids) -> float:
        """How much likelier the best next token is than the second best, in log-probability at temperature 1."""
        held = request.end_id if len(said) < request.min_tokens else None
        edited = self._edited((*self.prompt_ids(request), *said), self._options(request), held)
        best, second = np.partition(edited, -2)[:-3:-1]
        return float(best - second)

    def log_probs(self, request: GenerationRequest, said: Ids) -> tuple[float, ...]:
        """The log-probability of every token of a text, before any sampling option."""
        prompt = self.prompt_ids(request)

        def one(i: int) -> float:
            return float(log_softmax(self._fetch((*prompt, *said[:i]), 1.0))[said[i]])

        return tuple(self._pool.map(one, range(len(said))))

    def _options(self, request: GenerationRequest) -> SamplingParams:
        """Words as the ids they stand for."""
        tokenizer, sampling = cast(Tokenizer, self._tokenizer), request.sampling
        return replace(
            sampling,
            logit_bias=(*sampling.logit_bias, *bias_by_id(request.embedding_bias, tokenizer)),
            bad_words=(*sampling.bad_words, *bad_word_ids(request.bad_words, tokenizer)),
        )

    def _edited(self, history: Ids, options: SamplingParams, held: int | None) -> Probabilities:
        ratio = 1.0 if self.gives_raw_logits else options.repetition_penalty
        if ratio != 1.0:
            options = replace(options, repetition_penalty=1.0)
        return edited_scores(self._fetch(history, ratio), options, history, held)

    def _fetch(self, prefix: Ids, repetition_penalty: float) -> FloatArray:
        key = (prefix, repetition_penalty)
        if key not in self._scores:
            sampling = replace(PLAIN, repetition_penalty=repetition_penalty)
            scores = self._deployment.next_scores(prefix, sampling)
            with self._lock:
                self._scores[key] = scores
        return self._scores[key]


def find_teacher(deployment: Deployment, pool: Executor) -> Teacher | Unavailable:
    """A teacher, or why there is none: no tokenizer, one that is not the deployment's, or no logits."""
    if deployment.tokenizer is None:
        return Unavailable("the target's tokenizer is not known here")
    try:
        teacher = Teacher(deployment, pool)
    except SpecDecodeError as error:
        return Unavailable(f"the target gives no logits: {error}")
    for text in ("The sea is", "Once upon a time", "1, 2, 3, 4,"):
        answer = deployment.ask(GenerationRequest(text, 6, num_draft_tokens=0, exclude_input_in_output=True))
        ids = deployment.tokenizer.encode(text)
        if deployment.tokenizer.decode(answer.token_ids) != answer.text or answer.statistics["prompt_tokens"] != len(
            ids
        ):
            return Unavailable("the tokenizer here is not the deployment's")
        if answer.token_ids:
            return teacher
    return Unavailable("the deployment says nothing that the tokenizer could be tried on")
