"""Part b: the law of the first tokens, by option set and rule."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count

import numpy as np

from pipeline.conformance.check import FALSE_ALARM, Check, Context, Finding
from pipeline.conformance.deployment import Answer, Ids
from pipeline.conformance.goodness import IMPOSSIBLE, Fit, Plan, common_cells, fit_texts, fit_tokens, fit_two
from pipeline.conformance.option_sets import SETS, OptionSet, quick_sets
from pipeline.conformance.statistics import SCREEN
from pipeline.conformance.teacher import Teacher
from pipeline.conformance.texts import END, Cells, likeliest_texts
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams

LENGTH = 4  # token 1 is plain, a verify of K = 2 may decide the others
K = 2
REPEAT = 4  # a suspicious sample is drawn again this many times
LEAST = 8  # expected in a cell
MOST_CELLS, ENOUGH_CELLS = 12, 6
DISTANCE, QUICK_DISTANCE = 0.06, 0.1  # total variation of tokens to detect
BATCH = 64
MOST_SAMPLES = 1500
TESTS = 3  # of a sample: texts, tokens, impossible tokens
PROMPTS = ("The best thing about the sea is", "My favourite day of the week is", "When I was young, I used to")


@dataclass(frozen=True)
class Case:
    """One option set under one rule."""

    options: OptionSet
    rule: str

    @property
    def name(self) -> str:
        return f"{self.options.name}, {self.rule}"


class LawCheck(Check):
    """Samples first tokens and compares them with their law.

    A sample that one test in a hundred would find odd is drawn again, REPEAT times as large; only what the larger
    sample shows by an inequality that needs no approximation is a fault.

    Args:
        distance: total variation that is to be detected in tokens (in texts where there is no teacher), which decides
            how many answers are drawn; None: 0.1 with `quick`, else 0.06.
        sets: option sets; None: two that depend on what is offered with `quick`, else all.
    """

    part = "b law"

    def __init__(self, distance: float | None = None, sets: Sequence[OptionSet] | None = None) -> None:
        self._distance = distance
        self._sets = sets

    def run(self, context: Context) -> Iterator[Finding]:
        facts = context.facts
        if facts.max_draft_len == 0 or not facts.rules:
            yield self.not_offered("all", "no speculation")
            return
        cases = []
        for options in self._sets if self._sets is not None else quick_sets(facts) if context.quick else SETS:
            if not facts.offers(*options.needs):
                yield self.not_offered(options.name, facts.why_not(*options.needs))
            else:
                cases += [Case(options, rule) for rule in facts.rules]
        if context.quick and self._sets is None and cases:
            # Every rule has its turn in a full run: here the best one, then the one that draws its numbers otherwise.
            coupled = "coupled" if "coupled" in facts.rules else facts.rules[-1]
            first, second = cases[0].options, cases[-1].options
            cases = [Case(first, facts.rules[0]), Case(second, coupled)]
        distance = self._distance or (QUICK_DISTANCE if context.quick else DISTANCE)
        plan = Plan(REPEAT, FALSE_ALARM / max(1, len(cases)) / (REPEAT * TESTS))
        for case in cases:
            yield self._test(context, case, distance, plan)

    def _test(self, context: Context, case: Case, distance: float, plan: Plan) -> Finding:
        sample = _start(context, case, distance, plan)
        fits = sample.draw_until(distance)
        if not sample.drafted:
            return self.not_offered(case.name, "nothing was drafted, so plain decoding alone was seen")
        shown = [str(fit) for fit in fits if fit.name != IMPOSSIBLE]
        detail = "; ".join([*shown, f"{sample.accepted} of {sample.drafted} drafts kept"])
        figures = {"tests": [asdict(fit) for fit in fits], "drafted": sample.drafted, "accepted": sample.accepted}
        if all(fit.tail >= SCREEN for fit in fits):
            return self.passed(case.name, detail, **figures)
        # Suspicious: a fresh sample, and a bound that needs no approximation. It may end early.
        samples = len(sample.texts)
        sample.forget()
        for repeat in range(1, plan.repeat + 1):
            sample.draw(samples)
            fits = sample.fits()
            figures["confirmation"] = [asdict(fit) for fit in fits]
            worst = min(fits, key=lambda fit: fit.bound)
            if worst.bound < plan.bound:
                why = f"{worst}; in {repeat} x {samples} more answers, by chance at most {worst.bound:.1g}"
                return self.failed(case.name, why, **figures)
        return self.passed(case.name, f"{detail}; odd, but not so in {plan.repeat} x {samples} more answers", **figures)


class _Sample(ABC):
    """Answers to one request under many seeds, and what they are compared with."""

    def __init__(self, context: Context, request: GenerationRequest, plan: Plan) -> None:
        self.context = context
        self.request = request
        self.plan = plan
        self.texts: list[Ids] = []
        self.drafted = 0
        self.accepted = 0
        self._seeds = count(secrets.randbits(48))  # neighbours, as users choose them

    @abstractmethod
    def fits(self) -> list[Fit]:
        """All tests of what was drawn so far."""

    def draw_until(self, distance: float) -> list[Fit]:
        """Draw as many as it takes to detect `distance`, which depends on the laws met, not on how tokens fell."""
        self.draw(BATCH)
        while True:
            fits = self.fits()
            sharpest = min((fit.detectable for fit in fits if fit.name != IMPOSSIBLE), default=1.0)
            # Power grows with the square of the distance.
            missing = int(len(self.texts) * ((sharpest / distance) ** 2 - 1)) + 1
            if sharpest <= distance or len(self.texts) >= MOST_SAMPLES or not self.drafted:
                return fits
            # A first look may have had too few cells: its own estimate is not trusted far.
            self.draw(min(missing, 3 * len(self.texts), MOST_SAMPLES - len(self.texts)))

    def draw(self, size: int) -> None:
        answers = self.ask(self.request, size)
        self.texts += [text_of(answer) for answer in answers]
        self.drafted += sum(answer.statistics["num_draft_tokens"] for answer in answers)
        self.accepted += sum(answer.statistics["num_accepted_draft_tokens"] for answer in answers)

    def forget(self) -> None:
        self.texts = []

    def ask(self, request: GenerationRequest, size: int) -> list[Answer]:
        return self.context.ask([replace(request, seed=next(self._seeds)) for _ in range(size)])


class _TaughtSample(_Sample):
    """Compared with the teacher-forced law."""

    def __init__(
        self, context: Context, teacher: Teacher, request: GenerationRequest, cells: Cells, plan: Plan
    ) -> None:
        super().__init__(context, request, plan)
        self._teacher = teacher
        self._cells = cells

    def fits(self) -> list[Fit]:
        teacher, request = self._teacher, self.request
        teacher.fetch(request, {text[:i] for text in self.texts for i in range(1, len(text))})
        tokens = fit_tokens(self.texts, lambda said: teacher.law(request, said), request.end_id, self.plan)
        return [fit_texts(self.texts, self._cells, self.plan), *tokens]


class _PairedSample(_Sample):
    """Compared with as many answers of plain decoding."""

    def __init__(self, context: Context, request: GenerationRequest, plan: Plan) -> None:
        super().__init__(context, request, plan)
        self._plain: list[Ids] = []
        self._kept: Cells | None = None

    def fits(self) -> list[Fit]:
        return [fit_two(self.texts, self._plain, self._kept or self._cells(), self.plan)]

    def draw(self, size: int) -> None:
        super().draw(size)
        self._plain += [text_of(answer) for answer in self.ask(replace(self.request, num_draft_tokens=0), size)]

    def forget(self) -> None:
        self._kept = self._cells()  # the confirmation must not help to choose its cells
        super().forget()
        self._plain = []

    def _cells(self) -> Cells:
        return common_cells(self.texts + self._plain, 2 * LEAST, MOST_CELLS)


def _start(context: Context, case: Case, distance: float, plan: Plan) -> _Sample:
    if isinstance(context.teacher, Teacher):
        request, cells = _prepare(context.teacher, case, distance)
        return _TaughtSample(context, context.teacher, request, cells, plan)
    return _PairedSample(context, _request(case, PROMPTS[0]), plan)


def text_of(answer: Answer) -> Ids:
    """Committed tokens, and END where the end token came."""
    return (*answer.token_ids, END) if answer.finish_reason == "eos" else answer.token_ids


def _request(case: Case, prompt: str) -> GenerationRequest:
    plain = GenerationRequest(
        prompt, LENGTH, exclude_input_in_output=True, num_draft_tokens=K, acceptance_rule=case.rule
    )
    return case.options.apply(plain)


def _prepare(teacher: Teacher, case: Case, distance: float) -> tuple[GenerationRequest, Cells]:
    """A prompt whose law has many cells that can be told apart, and its cells."""
    samples = 2 / distance**2  # about as many as will be drawn
    best: tuple[GenerationRequest, Cells] | None = None
    for prompt in PROMPTS:
        request = _request(case, prompt)
        # The deployment's own end token is not known to every client: each request names one.
        request = replace(request, end_id=(_likely_end if case.options.ends else _unlikely_end)(teacher, request))
        cells = likeliest_texts(partial(teacher.law, request), LENGTH, request.end_id, LEAST / samples, MOST_CELLS)
        if best is None or len(cells.masses) > len(best[1].masses):
            best = (request, cells)
        if len(cells.masses) >= ENOUGH_CELLS:
            break
    assert best is not None
    return best


def _likely_end(teacher: Teacher, request: GenerationRequest) -> int:
    """The second choice for the last token that min_tokens holds back, else for the third one, inside a block."""
    said: Ids = ()
    for _ in range(request.min_tokens - 1 if request.min_tokens else 2):
        said = (*said, int(teacher.law(request, said).p.argmax()))
    return int(np.argsort(-teacher.law(request, said).p)[1])


def _unlikely_end(teacher: Teacher, request: GenerationRequest) -> int:
    return int(teacher.law(replace(request, sampling=SamplingParams(temperature=1.0)), ()).p.argmin())
