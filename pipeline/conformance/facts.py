"""What a deployment offers, found out by asking: a client at a URL has no manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.conformance.deployment import Deployment
from pipeline.errors import ServerError, SpecDecodeError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams

BIASED_REPETITION = "repetition_penalty with embedding_bias"
"""Engines that apply the bias first offer each, and not both at once."""
RULES = ("block", "token", "coupled", "match")
MOST_DRAFT_TOKENS = 64
SAMPLED = SamplingParams(temperature=1.0)


@dataclass(frozen=True)
class Facts:
    """What requests may ask for.

    Attributes:
        rules: acceptance rules.
        max_draft_len: the largest K; 0 where there is no speculation.
        refused: option -> why, in the deployment's words.
        reproducible_greedy: it says that greedy texts do not depend on rounding.
    """

    rules: tuple[str, ...]
    max_draft_len: int
    refused: dict[str, str]
    reproducible_greedy: bool

    def offers(self, *options: str) -> bool:
        return not any(option in self.refused for option in options)

    def why_not(self, *options: str) -> str:
        return "; ".join(self.refused[option] for option in options if option in self.refused)


def probe(deployment: Deployment) -> Facts:
    """Ask for everything once, one token each.

    Raises:
        ServerError: the deployment cannot be reached.
        SpecDecodeError: it does not even answer a plain, greedy request.
    """
    plain = GenerationRequest("The sea is", 1, exclude_input_in_output=True, num_draft_tokens=0)
    answer = deployment.ask(plain)

    def refusal(request: GenerationRequest) -> str | None:
        try:
            deployment.ask(request)
        except ServerError:
            raise
        except SpecDecodeError as error:
            return str(error)
        return None

    refused = {name: why for name, change in OPTION_PROBES.items() if (why := refusal(change(plain))) is not None}
    wanted = {rule: replace(plain, sampling=SAMPLED, acceptance_rule=rule) for rule in RULES}
    rules = tuple(rule for rule, request in wanted.items() if refusal(request) is None)
    return Facts(
        rules=rules,
        max_draft_len=_largest(lambda k: refusal(replace(plain, num_draft_tokens=k)) is None),
        refused=refused,
        reproducible_greedy=bool(answer.statistics.get("reproducible", False)),
    )


def _sampling(**changes: float) -> Callable[[GenerationRequest], GenerationRequest]:
    return lambda plain: replace(plain, sampling=replace(SAMPLED, **changes))  # type: ignore[arg-type]


OPTION_PROBES: dict[str, Callable[[GenerationRequest], GenerationRequest]] = {
    "temperature": _sampling(),
    "top_k": _sampling(top_k=4),
    "top_p": _sampling(top_p=0.9),
    "min_p": _sampling(min_p=0.1),
    "repetition_penalty": _sampling(repetition_penalty=1.2),
    "presence_penalty": _sampling(presence_penalty=0.5),
    "frequency_penalty": _sampling(frequency_penalty=0.5),
    "embedding_bias": lambda plain: replace(plain, sampling=SAMPLED, embedding_bias=((" a", -1.0),)),
    BIASED_REPETITION: lambda plain: replace(
        plain, sampling=replace(SAMPLED, repetition_penalty=1.2), embedding_bias=((" a", -1.0),)
    ),
    "bad_words": lambda plain: replace(plain, sampling=SAMPLED, bad_words=("a",)),
    "stop_words": lambda plain: replace(plain, stop_words=("never",)),
    "end_id": lambda plain: replace(plain, end_id=0),
    "min_tokens": lambda plain: replace(plain, min_tokens=1),
    "seed": lambda plain: replace(plain, sampling=SAMPLED, seed=1),
    "return_log_probs": lambda plain: replace(plain, return_log_probs=True),
}


def _largest(works: Callable[[int], bool]) -> int:
    low, high = 0, MOST_DRAFT_TOKENS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low
