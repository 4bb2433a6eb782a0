"""`specdec choose-draft`: which draft, and which K controller, on prompts of the user's own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.client.draft_candidates import own_candidates, parse_candidate, prepare
from pipeline.client.local import LocalModels, local_models
from pipeline.client.prompts import BUILT_IN, Prompt, load_prompts
from pipeline.client.ratios import bootstrap_interval, geomean
from pipeline.client.terminal import print_table
from pipeline.engine.step import StepRequest
from pipeline.engine.waiting import call
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.spec import ControllerSpec, DeploymentSpec


@dataclass(frozen=True)
class Sample:
    """One prompt under one draft and controller, beside plain decoding of the same prompt.

    Attributes:
        ratio: tokens per second over those of one direct call of the target.
        tokens, rounds, drafted, accepted: of the speculative answer.
    """

    kind: str
    ratio: float
    tokens: int
    rounds: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class Contender:
    """A draft with a controller, and how it did."""

    draft: str
    controller: str
    samples: tuple[Sample, ...]

    @property
    def name(self) -> str:
        return f"{self.draft} + {self.controller}"

    @property
    def acceptance(self) -> float:
        drafted = sum(sample.drafted for sample in self.samples)
        return sum(sample.accepted for sample in self.samples) / drafted if drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        return sum(sample.tokens for sample in self.samples) / sum(sample.rounds for sample in self.samples)

    def ratio(self, kind: str | None = None) -> float:
        """Geometric mean over prompts, of one kind or all."""
        return geomean([sample.ratio for sample in self.samples if kind in (None, sample.kind)])


@dataclass(frozen=True)
class Verdict:
    """Which to take.

    Attributes:
        best: the contender with the highest ratio.
        lower, upper: 95 % interval of its ratio over plain decoding, prompts resampled.
        equals: contenders that are not clearly slower than it on these prompts.
    """

    best: Contender
    lower: float
    upper: float
    equals: tuple[str, ...]

    @property
    def pays(self) -> bool:
        """Whether speculation is clearly faster than plain decoding."""
        return self.lower > 1.0


def judge(contenders: Sequence[Contender]) -> Verdict:
    """Compare contenders that answered the same prompts in the same order."""
    best = max(contenders, key=Contender.ratio)
    ratios = {one.name: [sample.ratio for sample in one.samples] for one in contenders}
    lower, upper = bootstrap_interval(ratios[best.name], geomean)
    equals = [
        name
        for name, values in ratios.items()
        if name != best.name
        and bootstrap_interval([a / b for a, b in zip(ratios[best.name], values, strict=True)], geomean)[0] <= 1.0
    ]
    return Verdict(best, lower, upper, tuple(equals))


def run_choose_draft(
    spec: DeploymentSpec,
    console: Console,
    drafts: Sequence[str],
    controllers: Sequence[str],
    prompts_file: Path | None,
    max_tokens: int,
    temperature: float,
    json_file: Path | None,
) -> int:
    """Build what is missing, measure in this process, print which to take. Returns the exit status.

    Raises:
        SpecDecodeError: a draft, controller or prompt file that cannot be used.
    """
    sampling = SamplingParams(temperature)
    candidates = [parse_candidate(text, spec.draft) for text in dict.fromkeys(drafts)] or own_candidates(spec.draft)
    kinds = [parse_controller(text, spec) for text in dict.fromkeys(controllers)] or [("goodput", ControllerSpec())]
    prompts = load_prompts(prompts_file or BUILT_IN)
    prepared = prepare(spec, candidates)
    contenders: list[Contender] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("loading", total=len(candidates) * len(prompts))
        for candidate, wanted in zip(candidates, prepared, strict=True):
            progress.update(task, description=candidate.name)
            with local_models(wanted) as models:
                contenders += _measure(
                    candidate.name, wanted, models, kinds, prompts, max_tokens, sampling, lambda: progress.advance(task)
                )
    verdict = judge(contenders)
    named = dict(zip([candidate.name for candidate in candidates], prepared, strict=True))
    _print(console, contenders, verdict, named[verdict.best.draft], dict(kinds)[verdict.best.controller])
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        report = {
            "contenders": [asdict(one) for one in contenders],
            "verdict": {**asdict(verdict), "pays": verdict.pays},
        }
        json_file.write_text(json.dumps(report, indent=2) + "\n")
        console.print(f"written to {json_file}", highlight=False)
    return 0


def parse_controller(text: str, spec: DeploymentSpec) -> tuple[str, ControllerSpec]:
    """A kind, or "fixed=K".

    Raises:
        SpecError: as in a spec.
    """
    kind, _, k = text.partition("=")
    found = DeploymentSpec.check({**spec.model_dump(), "controller": {"kind": kind, **({"k": k} if k else {})}})
    return text, found.controller


def _measure(
    draft: str,
    spec: DeploymentSpec,
    models: LocalModels,
    controllers: Sequence[tuple[str, ControllerSpec]],
    prompts: Sequence[Prompt],
    max_tokens: int,
    sampling: SamplingParams,
    tick: Callable[[], None],
) -> list[Contender]:
    """Every controller on every prompt, plain decoding among them; who begins changes from prompt to prompt."""
    samples: dict[str, list[Sample]] = {name: [] for name, _ in controllers}
    with ExitStack() as opened:
        made = {
            name: opened.enter_context(closing(models.orchestrator(spec.model_copy(update={"controller": controller}))))
            for name, controller in controllers
        }
        for number, prompt in enumerate(prompts):
            text = models.tokenizer.apply_chat_template(prompt.text)
            ids = tuple(models.tokenizer.encode(text, add_special_tokens=False))
            asked = GenerationRequest(
                prompt.text, max_tokens, sampling, seed=number, chat=True, exclude_input_in_output=True
            )
            # Both engines have the prompt in their caches, whoever comes first.
            _speculative(next(iter(made.values())), replace(asked, max_tokens=3, num_draft_tokens=1))
            order = ["", *made]
            order = order[number % len(order) :] + order[: number % len(order)]
            plain = 0.0
            found = {}
            for name in order:
                if name:
                    found[name] = _speculative(made[name], asked)
                else:
                    request = StepRequest(
                        f"plain-{number}", ids, max_tokens, sampling=sampling, seed=number,
                        end_id=models.target_manifest.end_id,
                    )  # fmt: skip
                    began = time.perf_counter()
                    result = call(models.target, request, spec.deadlines.target_s, "target")
                    plain = max(len(result.output_ids), 1) / (time.perf_counter() - began)
            for name, (speed, counts) in found.items():
                samples[name].append(Sample(prompt.kind, speed / plain, *counts))
            tick()
    return [Contender(draft, name, tuple(values)) for name, values in samples.items()]


def _speculative(orchestrator: Orchestrator, request: GenerationRequest) -> tuple[float, tuple[int, int, int, int]]:
    """Tokens per second; tokens, rounds, drafted and accepted."""
    began = time.perf_counter()
    (chunk,) = orchestrator.generate(request)
    seconds, found = time.perf_counter() - began, chunk.statistics
    assert found is not None
    counts = found.committed_tokens, found.rounds, found.num_draft_tokens, found.num_accepted_draft_tokens
    return max(found.committed_tokens, 1) / seconds, counts


def _print(
    console: Console,
    contenders: Sequence[Contender],
    verdict: Verdict,
    spec: DeploymentSpec,
    controller: ControllerSpec,
) -> None:
    kinds = list(dict.fromkeys(sample.kind for sample in contenders[0].samples))
    rows = [
        (
            one.name,
            f"{one.acceptance:.2f}",
            f"{one.tokens_per_round:.2f}",
            f"{one.ratio():.2f}x",
            *(f"{one.ratio(kind):.2f}x" for kind in kinds),
        )
        for one in sorted(contenders, key=Contender.ratio, reverse=True)
    ]
    title = f"{len(contenders[0].samples)} prompts, one request at a time, tokens/s over plain decoding"
    print_table(console, title, ("draft + controller", "accept", "t/round", "all", *kinds), rows)
    interval = f"{verdict.lower:.2f}x to {verdict.upper:.2f}x of plain decoding in 95 of 100 draws of such prompts"
    if not verdict.pays:
        console.print(f"take none of them (`speculation: off`): {verdict.best.name} reaches {interval}")
        return
    console.print(f"take {verdict.best.name}: {interval}", highlight=False)
    if verdict.equals:
        console.print(f"not clearly slower on these prompts: {', '.join(verdict.equals)}", highlight=False)
    settings: dict[str, Any] = {
        "draft": spec.draft.model_dump(mode="json", exclude_defaults=True) | {"kind": spec.draft.kind},
        "controller": controller.model_dump(exclude_defaults=True) | {"kind": controller.kind},
    }
    console.print(f"in the spec: {json.dumps(settings)}", highlight=False, soft_wrap=True)
