"""Part e: log-probabilities of committed tokens against teacher forcing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pipeline.conformance.check import Check, Context, Finding
from pipeline.conformance.teacher import Teacher
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams

TOLERANCE = 0.02
"""Nats; products of other row counts in FP16 differ by less."""
TOKENS = 16
CASES: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.7, top_k=20),
}


class LogProbCheck(Check):
    """Every `output_log_probs` entry, and `cum_log_probs`, plain and with drafts."""

    part = "e log-probs"

    def run(self, context: Context) -> Iterator[Finding]:
        if not context.facts.offers("return_log_probs"):
            yield self.not_offered("output_log_probs", context.facts.why_not("return_log_probs"))
            return
        if not isinstance(context.teacher, Teacher):
            yield self.not_offered("output_log_probs", f"nothing to compare with: {context.teacher.reason}")
            return
        for name, sampling in CASES.items():
            for k in sorted({0, min(2, context.facts.max_draft_len), min(5, context.facts.max_draft_len)}):
                request = GenerationRequest(
                    context.prompts[0].text,
                    TOKENS,
                    sampling=sampling,
                    exclude_input_in_output=True,
                    num_draft_tokens=k,
                    return_log_probs=True,
                )
                yield self._compare(context, context.teacher, f"{name}, K = {k}", request)

    def _compare(self, context: Context, teacher: Teacher, name: str, request: GenerationRequest) -> Finding:
        (answer,) = context.ask([request])
        if len(answer.log_probs) != len(answer.token_ids):
            return self.failed(name, f"{len(answer.log_probs)} log-probs for {len(answer.token_ids)} tokens")
        expected = teacher.log_probs(request, answer.token_ids)
        worst = max((abs(a - b) for a, b in zip(answer.log_probs, expected, strict=True)), default=0.0)
        total, cum = math.fsum(answer.log_probs), answer.cum_log_prob
        detail = f"{len(expected)} tokens, largest difference {worst:.2g}, sum {total:.3f}"
        if worst > TOLERANCE or not math.isfinite(worst):
            return self.failed(name, detail, largest=worst)
        if cum is None or abs(cum - total) > 1e-3 * max(1.0, abs(total)):
            return self.failed(name, f"{detail}, but cum_log_probs is {cum}", largest=worst)
        return self.passed(name, detail, largest=worst)
