"""Part d: what a seed promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.conformance.check import Check, Context, Finding
from pipeline.conformance.deployment import Answer
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams

TOKENS, QUICK_TOKENS = 24, 8
SEEDS, QUICK_SEEDS = 6, 2
UNSEEDED = 6
K = 2
SAMPLING = SamplingParams(temperature=1.0)


class SeedCheck(Check):
    """Same seed, same text where it is promised; no seed, no repetition; the promise is kept where it is made."""

    part = "d seeds"

    def run(self, context: Context) -> Iterator[Finding]:
        if not context.facts.offers("seed", "temperature"):
            yield self.not_offered("seeds", context.facts.why_not("seed", "temperature"))
            return
        tokens = QUICK_TOKENS if context.quick else TOKENS
        request = GenerationRequest(context.prompts[0].text, tokens, sampling=SAMPLING, exclude_input_in_output=True)
        yield self._without_seeds(context.ask([request] * UNSEEDED))
        k = min(K, context.facts.max_draft_len)
        for rule in context.facts.rules:
            yield self._repeated(
                context, f"{rule}, K = {k}", replace(request, acceptance_rule=rule, num_draft_tokens=k)
            )
        yield self._repeated(context, "no rule named, adaptive K", request)
        yield self._repeated(context, "no rule named, K = 0", replace(request, num_draft_tokens=0))

    def _without_seeds(self, answers: Sequence[Answer]) -> Finding:
        name = "no seed"
        texts, seeds = {answer.token_ids for answer in answers}, {answer.statistics["seed"] for answer in answers}
        if len(seeds) < len(answers):
            return self.failed(name, f"{len(answers)} requests without a seed drew {len(seeds)} seeds")
        if len(texts) == 1:
            return self.failed(name, f"{len(answers)} requests without a seed gave one text")
        return self.passed(name, f"{len(texts)} different texts of {len(answers)}, all seeds different")

    def _repeated(self, context: Context, name: str, request: GenerationRequest) -> Finding:
        count = QUICK_SEEDS if context.quick else SEEDS
        base = [replace(request, seed=1000 + number) for number in range(count)]
        # Each seed twice among neighbours, then once more in other company.
        answers = context.ask(base + base)
        again = context.ask(base[:1])
        if any(answer.statistics["seed"] != asked.seed for answer, asked in zip(answers, base + base, strict=True)):
            return self.failed(name, "the statistics name another seed than the request's")
        if len({answer.token_ids for answer in answers[:count]}) == 1:
            return self.failed(name, f"{count} different seeds gave one text")
        pairs = [*zip(answers[:count], answers[count:], strict=True), (answers[0], again[0])]
        equal = sum(left.token_ids == right.token_ids for left, right in pairs)
        promised = all(answer.statistics.get("reproducible") for answer in (*answers, *again))
        some = any(answer.statistics.get("reproducible") for answer in (*answers, *again))
        detail = f"{equal} of {len(pairs)} repetitions equal, reproducible: {str(promised).lower()}"
        figures = {"equal": equal, "pairs": len(pairs), "promised": promised}
        if some and equal < len(pairs):
            return self.failed(name, f"{detail}: the promise is not kept", **figures)
        return self.passed(name, detail, **figures) if promised else self.not_offered(name, detail, **figures)
