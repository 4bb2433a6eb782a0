"""Random requests whose text is known beforehand: greedy, or seeded under the coupled rule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from pipeline.client.prompts import Prompt
from pipeline.orchestrator.request import EACH_ROUND, EACH_TOKEN, GenerationRequest
from pipeline.sampling.params import SamplingParams

LONGEST = 24  # tokens of most answers
_RARELY_LONGER = 64
_STOP_WORDS = (" the", "\n", ".", ", and", "0")
_BAD_WORDS = (" of", " a", "and", "1")
_BIASED = (" yes", " no", "The", " is")
_RULES = ("auto", "token", "block", "match", "coupled")


def make_requests(count: int, prompts: Sequence[Prompt], rules: Sequence[str], seed: int) -> list[GenerationRequest]:
    """Different requests, each with options of every kind.

    Args:
        rules: that the deployment offers.
        seed: the same seed makes the same requests.
    """
    rng = random.Random(seed)
    found: dict[str, GenerationRequest] = {}
    while len(found) < count:
        request = _request(rng, prompts, rules)
        found.setdefault(repr(request), request)
    return list(found.values())


def vary(request: GenerationRequest, rng: random.Random, largest_k: int) -> GenerationRequest:
    """The same request with what must not change its text: K, the way of streaming, what is told besides."""
    stream = rng.random() < 0.7
    k = rng.choice((None, None, None, 0, rng.randint(1, largest_k))) if largest_k else None
    return replace(
        request,
        stream=stream,
        stream_tokens=EACH_TOKEN if stream and rng.random() < 0.2 else EACH_ROUND,
        return_perf_metrics=stream and rng.random() < 0.2,
        num_draft_tokens=k,
    )


def _request(rng: random.Random, prompts: Sequence[Prompt], rules: Sequence[str]) -> GenerationRequest:
    text = rng.choice(prompts).text
    max_tokens = rng.randint(1, LONGEST) if rng.random() < 0.96 else rng.randint(LONGEST, _RARELY_LONGER)
    sampled = rng.random() < 0.65
    coupled = "coupled" in rules
    offered = [rule for rule in _RULES if rule == "auto" or rule in rules]
    return GenerationRequest(
        text_input=text[: rng.randint(min(12, len(text)), len(text))],
        max_tokens=max_tokens,
        sampling=_sampling(rng, sampled and coupled),
        # Greedy text depends on no rule and no seed; sampled text is known beforehand under the coupled rule alone.
        seed=rng.getrandbits(64) if (sampled and coupled) or rng.random() < 0.5 else None,
        acceptance_rule="coupled" if sampled and coupled else rng.choice(offered),
        stop_words=tuple(rng.sample(_STOP_WORDS, rng.randint(1, 2))) if rng.random() < 0.25 else (),
        bad_words=(rng.choice(_BAD_WORDS),) if rng.random() < 0.15 else (),
        embedding_bias=((rng.choice(_BIASED), rng.choice((-4.0, 3.0))),) if rng.random() < 0.15 else (),
        min_tokens=rng.randint(1, max_tokens) if rng.random() < 0.2 else 0,
        end_id=-1 if rng.random() < 0.1 else None,
        exclude_input_in_output=True,
        return_log_probs=rng.random() < 0.2,
        num_return_sequences=rng.randint(2, 3) if rng.random() < 0.05 else 1,
        chat=rng.random() < 0.5,
    )


def _sampling(rng: random.Random, sampled: bool) -> SamplingParams:
    def sometimes(share: float, *values: float) -> float:
        """The first value, or one of the others."""
        return rng.choice(values[1:]) if rng.random() < share else values[0]

    return SamplingParams(
        temperature=rng.choice((0.3, 0.8, 1.0, 1.4)) if sampled else 0.0,
        top_k=int(sometimes(0.3, 0, 2, 20, 200)) if sampled else 0,
        top_p=sometimes(0.3, 1.0, 0.5, 0.9) if sampled else 1.0,
        min_p=sometimes(0.2, 0.0, 0.02, 0.2) if sampled else 0.0,
        repetition_penalty=sometimes(0.2, 1.0, 0.8, 1.3),
        presence_penalty=sometimes(0.15, 0.0, -0.5, 1.0),
        frequency_penalty=sometimes(0.15, 0.0, -0.3, 0.7),
    )
