"""The served half of `specdec bench`: speculation against one direct call of the target, prompt by prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.client.prompts import Prompt
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.orchestrator.request import GenerationRequest
from pipeline.text.tokenizer import Tokenizer

FIXED_K = (1, 2, 3, 5, 8)


@dataclass(frozen=True)
class Divergence:
    """Where a speculative text left the plain one.

    Attributes:
        position: index of the first different token.
        margin: log-probability of the target's best token there over its second best; tiny means a tie that
            the row count of a product decided.
    """

    k: str
    position: int
    margin: float


@dataclass(frozen=True)
class ServedResult:
    """One prompt, decoded plainly and with speculation.

    Attributes:
        plain_s, speculative_s: wall seconds of the whole request at the client, prompt already cached for both.
        tokens: committed, the same for both where texts are equal.
        statistics: `spec_decode_stats` of the speculative request.
        divergences: by K, none where every text equals the plain one.
    """

    prompt: Prompt
    plain_s: float
    speculative_s: float
    plain_tokens: int
    tokens: int
    statistics: dict[str, Any]
    divergences: tuple[Divergence, ...]

    @property
    def speedup(self) -> float:
        """Tokens per second over tokens per second."""
        return (self.tokens / self.speculative_s) / (self.plain_tokens / self.plain_s)


class ServedBench:
    """Measures one deployment through its gRPC endpoint.

    Args:
        client: connected.
        tokenizer: the target's.
        end_id: the token that ends an answer.
        max_tokens: tokens per answer at most.
    """

    def __init__(self, client: SpecDecodeClient, tokenizer: Tokenizer, end_id: int | None, max_tokens: int) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._end_id = end_id
        self._max_tokens = max_tokens

    def measure(self, prompt: Prompt, order: int, fixed_k: Sequence[int]) -> ServedResult:
        """Plain and adaptive in alternating order, then the texts of every fixed K.

        Args:
            order: even: plain first; odd: speculation first.
            fixed_k: further K whose texts are compared.
        """
        ids = self._prompt_ids(prompt)
        self._plain(ids, 1)  # the prompt's KV is in the target's cache for whoever comes first
        runs: dict[str, tuple[float, tuple[int, ...], dict[str, Any]]] = {}
        for name in ("plain", "adaptive") if order % 2 == 0 else ("adaptive", "plain"):
            if name == "plain":
                started = time.perf_counter()
                tokens = self._plain(ids, self._max_tokens)
                runs[name] = (time.perf_counter() - started, tokens, {})
            else:
                runs[name] = self.speculative(prompt, None)
        plain_s, plain_ids, _ = runs["plain"]
        fast_s, fast_ids, statistics = runs["adaptive"]
        texts = {"adaptive": fast_ids} | {str(k): self.speculative(prompt, k)[1] for k in fixed_k}
        divergences = [self._compare(k, ids, plain_ids, found) for k, found in texts.items()]
        return ServedResult(
            prompt=prompt,
            plain_s=plain_s,
            speculative_s=fast_s,
            plain_tokens=len(plain_ids),
            tokens=len(fast_ids),
            statistics=statistics,
            divergences=tuple(found for found in divergences if found is not None),
        )

    def speculative(self, prompt: Prompt, k: int | None) -> tuple[float, tuple[int, ...], dict[str, Any]]:
        """One streamed request: seconds, committed tokens, statistics."""
        request = GenerationRequest(
            prompt.text,
            max_tokens=self._max_tokens,
            stream=True,
            exclude_input_in_output=True,
            num_draft_tokens=k,
            chat=True,
        )
        started = time.perf_counter()
        replies = list(self._client.generate(request))
        seconds = time.perf_counter() - started
        statistics = replies[-1].statistics
        assert statistics is not None
        return seconds, tuple(token for reply in replies for token in reply.token_ids), statistics

    def rounds(self, prompt: Prompt) -> list[dict[str, Any]]:
        """One more request, whose rounds are sent: not timed beside others, since sending them costs a little.

        Returns:
            Per round `seconds` since the request, drafted, accepted, committed, source and reason.
        """
        request = GenerationRequest(
            prompt.text,
            self._max_tokens,
            stream=True,
            exclude_input_in_output=True,
            chat=True,
            return_perf_metrics=True,
        )
        kept = ("drafted", "accepted", "committed", "source", "reason")
        return [
            {"seconds": reply.seconds, **{name: reply.round[name] for name in kept}}
            for reply in self._client.generate(request)
            if reply.round is not None
        ]

    def _prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        text = self._tokenizer.apply_chat_template(prompt.text)
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _plain(self, ids: tuple[int, ...], tokens: int) -> tuple[int, ...]:
        return self._client.decode_plain(ids, tokens, self._end_id)

    def _compare(
        self, k: str, prompt_ids: tuple[int, ...], plain: tuple[int, ...], found: tuple[int, ...]
    ) -> Divergence | None:
        if plain == found:
            return None
        shortest = min(len(plain), len(found))
        position = next((i for i in range(shortest) if plain[i] != found[i]), shortest)
        margin = self._client.top_margin((*prompt_ids, *plain[:position]))
        return Divergence(k, position, margin)
