"""Sets of options whose laws are tested, each with a small effective support: power with few samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pipeline.conformance.facts import BIASED_REPETITION, Facts
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams


@dataclass(frozen=True)
class OptionSet:
    """Options that a request may carry together.

    Attributes:
        name: for the report.
        sampling: options of the law.
        needs: names that the deployment must offer.
        ends: take a likely token as the end token, so that the end is part of the law.
        fields: further fields of the request.
    """

    name: str
    sampling: SamplingParams
    needs: tuple[str, ...] = ("temperature",)
    ends: bool = False
    fields: tuple[tuple[str, Any], ...] = ()

    def apply(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, sampling=self.sampling, **dict(self.fields))


def _set(name: str, *needs: str, ends: bool = False, fields: dict[str, Any] | None = None, **law: Any) -> OptionSet:
    sampling = SamplingParams(**{"temperature": 1.0, **law})
    wanted = ("temperature", *law, *(name.split("_weights")[0] for name in fields or ()), *needs)
    if {"repetition_penalty", "embedding_bias"} <= set(wanted):
        wanted += (BIASED_REPETITION,)
    return OptionSet(name, sampling, tuple(dict.fromkeys(wanted)), ends, tuple((fields or {}).items()))


BIAS = {"embedding_bias": ((" a", 2.0), (" the", -1.5), (",", 1.0)), "bad_words": ("it", "not")}
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": -1.0, "frequency_penalty": -0.4}
"""Below 0 they invite what was said already, and the law depends on the history most."""
MOST = {"temperature": 1.1, "top_k": 5, "top_p": 0.9, "min_p": 0.08, **PENALTIES}

PLAIN = _set("temperature 1.2, top-k 2", temperature=1.2, top_k=2)
EVERYTHING = _set("all options", ends=True, fields={**BIAS, "min_tokens": 2}, **MOST)
SETS = (
    PLAIN,
    _set("end token, top-k 3", "end_id", temperature=1.2, top_k=3, ends=True),
    _set("temperature 0.6", temperature=0.6),
    _set("top-p 0.6", temperature=0.9, top_p=0.6),
    _set("min-p 0.25", temperature=1.1, min_p=0.25),
    _set("repetition penalty 1.5", repetition_penalty=1.5, top_k=3),
    _set("presence and frequency penalty", presence_penalty=-1.5, frequency_penalty=-0.5, top_k=3),
    _set("bias and bad words", fields=BIAS, top_k=3),
    _set("min-tokens 3", "end_id", temperature=1.2, top_k=3, ends=True, fields={"min_tokens": 3}),
    EVERYTHING,
)


def quick_sets(facts: Facts) -> tuple[OptionSet, ...]:
    """Two: a plain one, and as much at once as the deployment offers."""
    law = {name: value for name, value in MOST.items() if facts.offers(name)}
    fields = {name: value for name, value in {**BIAS, "min_tokens": 2}.items() if facts.offers(name)}
    if "embedding_bias" in fields and not facts.offers(BIASED_REPETITION):
        law.pop("repetition_penalty", None)
    return PLAIN, _set("all options at once", "end_id", ends=True, fields=fields, **law)
