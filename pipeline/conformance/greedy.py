"""Part a: greedy text equals plain decoding's for every K."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pipeline.conformance.check import Check, Context, Finding
from pipeline.conformance.deployment import Answer
from pipeline.conformance.teacher import Teacher
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams

FIXED_K = (1, 2, 3, 5, 8)
TIE = 0.05
"""Log-probability; products of other row counts in FP16 differ by less."""
TOKENS, QUICK_TOKENS = 48, 12
QUICK_PROMPTS = 3
QUICK_PENALTY_K = ("2", "5", "adaptive")
PENALTIES: dict[str, Any] = {"repetition_penalty": 1.3, "presence_penalty": 0.3, "frequency_penalty": 0.2}


def lengths(context: Context) -> dict[str, int | None]:
    """Every K that is tried, by name: fixed ones, the largest, and the controller's own choice."""
    most = context.facts.max_draft_len
    fixed: dict[str, int | None] = {str(k): k for k in FIXED_K if k < most}
    return {**fixed, f"{most} (max)": most, "adaptive": None}


def first_difference(left: Answer, right: Answer) -> int | None:
    """Index of the first token that differs, an early end included; None where there is none."""
    a, b = left.token_ids, right.token_ids
    if (a, left.text, left.finish_reason) == (b, right.text, right.finish_reason):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class GreedyCheck(Check):
    """Texts of every K against num_draft_tokens = 0. A difference is excused where low precision makes a tie."""

    part = "a greedy"

    def run(self, context: Context) -> Iterator[Finding]:
        if context.facts.max_draft_len == 0:
            yield self.not_offered("every K", "no speculation")
            return
        chosen = lengths(context)
        yield from self._compare(context, chosen, "", SamplingParams())
        law = {name: value for name, value in PENALTIES.items() if context.facts.offers(name)}
        if law:
            some = {name: k for name, k in chosen.items() if not context.quick or name in QUICK_PENALTY_K}
            yield from self._compare(context, some, ", penalties", SamplingParams(**law))
        else:
            yield self.not_offered("penalties", context.facts.why_not(*PENALTIES))

    def _compare(
        self, context: Context, chosen: dict[str, int | None], suffix: str, sampling: SamplingParams
    ) -> Iterator[Finding]:
        prompts = context.prompts[:QUICK_PROMPTS] if context.quick else context.prompts
        tokens = QUICK_TOKENS if context.quick else TOKENS
        plain = [
            GenerationRequest(prompt.text, tokens, sampling=sampling, exclude_input_in_output=True, num_draft_tokens=0)
            for prompt in prompts
        ]
        requests = plain + [replace(request, num_draft_tokens=k) for k in chosen.values() for request in plain]
        answers = context.ask(requests)
        size = len(plain)
        for number, name in enumerate(chosen, 1):
            found = answers[number * size : (number + 1) * size]
            yield self._judge(context, f"K = {name}{suffix}", plain, answers[:size], found)

    def _judge(
        self, context: Context, name: str, requests: list[GenerationRequest], plain: list[Answer], found: list[Answer]
    ) -> Finding:
        ties: list[float] = []
        accepted = sum(answer.statistics["num_accepted_draft_tokens"] for answer in found)
        drafted = sum(answer.statistics["num_draft_tokens"] for answer in found)
        for request, left, right in zip(requests, plain, found, strict=True):
            position = first_difference(left, right)
            if position is None:
                continue
            where = f"{request.text_input[:24]!r} differs at token {position}"
            if not isinstance(context.teacher, Teacher):
                return self.failed(name, f"{where}; its margin cannot be had: {context.teacher.reason}")
            margin = context.teacher.margin(request, left.token_ids[:position])
            same_tokens = left.token_ids == right.token_ids
            if margin >= TIE or right.statistics.get("reproducible") or same_tokens:
                return self.failed(name, f"{where}; margin {margin:.4f}", position=position, margin=margin)
            ties.append(margin)
        if not drafted and "adaptive" not in name:
            return self.not_offered(name, "nothing was drafted")
        excuse = f", {len(ties)} at a tie (margin {max(ties):.4f} at most)" if ties else ""
        detail = f"{len(found) - len(ties)} of {len(found)} texts equal{excuse}; {accepted} of {drafted} drafts kept"
        return self.passed(name, detail, texts=len(found), ties=ties, drafted=drafted, accepted=accepted)
