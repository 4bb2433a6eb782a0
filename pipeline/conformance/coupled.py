"""Part c: under rule coupled the text depends on the seed alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from pipeline.conformance.check import Check, Context, Finding
from pipeline.conformance.deployment import Answer
from pipeline.conformance.greedy import TIE, first_difference, lengths
from pipeline.conformance.teacher import Teacher
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.noise import exponentials, noise_keys
from pipeline.sampling.params import SamplingParams

SEEDS, QUICK_SEEDS = 16, 4
TOKENS, QUICK_TOKENS = 32, 8
SAMPLING = SamplingParams(temperature=1.0, top_p=0.95)


class CoupledCheck(Check):
    """Texts of every K, and of plain decoding, under the same seeds.

    Where the deployment does not promise its bits, a difference is excused if it is a tie: the two tokens' sums of
    log-probability and noise differ by less than low precision moves them.
    """

    part = "c coupled"

    def run(self, context: Context) -> Iterator[Finding]:
        facts = context.facts
        if "coupled" not in facts.rules or facts.max_draft_len == 0:
            why = "no speculation" if facts.max_draft_len == 0 else "rule coupled is not offered"
            yield self.not_offered("every K", why)
            return
        count, tokens = (QUICK_SEEDS, QUICK_TOKENS) if context.quick else (SEEDS, TOKENS)
        base = [
            GenerationRequest(
                context.prompts[seed % len(context.prompts)].text,
                tokens,
                sampling=SAMPLING,
                seed=seed + 1,
                exclude_input_in_output=True,
                num_draft_tokens=0,
                acceptance_rule="coupled",
            )
            for seed in range(count)
        ]
        chosen = lengths(context)
        answers = context.ask(
            base + [replace(request, num_draft_tokens=k) for k in chosen.values() for request in base]
        )
        plain, exact = answers[:count], 0
        if len({answer.text for answer in plain}) == 1:
            yield self.failed("seeds", f"{count} seeds gave one text: nothing depends on the seed")
            return
        for number, name in enumerate(chosen, 1):
            found = answers[number * count : (number + 1) * count]
            exact += sum(first_difference(left, right) is None for left, right in zip(plain, found, strict=True))
            yield self._judge(context, f"K = {name} against K = 0", base, plain, found)
        detail = f"{exact} of {count * len(chosen)} texts equal bit for bit"
        if all(answer.statistics.get("reproducible") for answer in answers):
            yield self.passed("bit exact", detail, equal=exact)
        else:
            yield self.not_offered("bit exact", f"{detail}; the deployment says reproducible: false", equal=exact)

    def _judge(
        self,
        context: Context,
        name: str,
        requests: Sequence[GenerationRequest],
        plain: Sequence[Answer],
        found: Sequence[Answer],
    ) -> Finding:
        rules = {str(answer.statistics.get("rule")) for answer in (*plain, *found)}
        if rules != {"coupled"}:
            return self.failed(name, f"asked for coupled, decoded with {', '.join(sorted(rules))}")
        ties = 0
        for request, left, right in zip(requests, plain, found, strict=True):
            position = first_difference(left, right)
            if position is None:
                continue
            where = f"seed {request.seed} differs at token {position}"
            if left.statistics.get("reproducible") and right.statistics.get("reproducible"):
                return self.failed(name, f"{where}, and reproducible: true was promised")
            if not isinstance(context.teacher, Teacher):
                return self.failed(name, f"{where}; its margin cannot be had: {context.teacher.reason}")
            margin = _margin(context.teacher, request, left, right, position)
            if margin >= TIE:
                return self.failed(name, f"{where}; margin {margin:.4f}: no tie", position=position)
            ties += 1
        drafted = sum(answer.statistics["num_draft_tokens"] for answer in found)
        if not drafted and "adaptive" not in name:
            return self.not_offered(name, "nothing was drafted")
        excuse = f", {ties} at a tie" if ties else ""
        return self.passed(
            name, f"{len(found) - ties} of {len(found)} texts equal{excuse}; {drafted} drafts", ties=ties
        )


def _margin(teacher: Teacher, request: GenerationRequest, left: Answer, right: Answer, position: int) -> float:
    """How far apart the two tokens are in log law + noise: 0 where an edge of the law lets in only one of them."""
    if position >= min(len(left.token_ids), len(right.token_ids)):
        return math.inf
    said = left.token_ids[:position]
    law = teacher.law(request, said)
    tokens = np.array([left.token_ids[position], right.token_ids[position]])
    if law.edge or np.any(law.p[tokens] == 0):
        return 0.0 if law.edge else math.inf
    place = np.array([[len(teacher.prompt_ids(request)) + position]])
    key = int(noise_keys([request.seed or 0], place)[0, 0])
    scores = np.log(law.p[tokens]) - np.log(exponentials(key, tokens))
    return float(abs(scores[0] - scores[1]))
