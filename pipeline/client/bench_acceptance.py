"""`specdec acceptance`: how often drafts are kept, by rule and temperature, in this process.

Counts, not times: the figures do not depend on the machine or on what else it does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from pipeline.client.local import local_orchestrator
from pipeline.client.prompts import BUILT_IN, Prompt, load_prompts
from pipeline.client.terminal import print_table
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.request import GenerationRequest
from pipeline.orchestrator.statistics import RequestStatistics
from pipeline.sampling.params import SamplingParams
from pipeline.spec import DeploymentSpec

DraftSampling = Literal["q", "greedy"]

TEMPERATURES = (0.7, 1.0)
K = 4
CASES: tuple[tuple[str, DraftSampling], ...] = (
    ("block", "q"),
    ("token", "q"),
    ("coupled", "q"),
    ("match", "q"),
    ("match", "greedy"),
)
AT_ONCE = 8


@dataclass(frozen=True)
class Acceptance:
    """One row of the table.

    Attributes:
        rate: accepted drafts over drafted ones.
        rate_error: its standard error, answers being independent.
        first: rounds that kept their first draft, over all speculative rounds.
        length: committed tokens per speculative round, correction or bonus included.
    """

    temperature: float
    rule: str
    drafts: str
    rounds: int
    rate: float
    rate_error: float
    first: float
    length: float


def run_acceptance(
    spec: DeploymentSpec,
    console: Console,
    max_tokens: int,
    answers: int,
    prompts_file: Path | None,
    json_file: Path | None,
) -> int:
    """Measure with so many answers per prompt, print the table, write JSON. Returns the exit status.

    Raises:
        SpecDecodeError: an engine is missing, or the spec has no draft model.
    """
    prompts = load_prompts(prompts_file or BUILT_IN)
    rows: list[Acceptance] = []
    with console.status("loading engines") as status:
        for sampling in dict.fromkeys(drafts for _, drafts in CASES):
            # The model alone: look-up drafts are one-hot under every rule.
            draft = spec.draft.model_copy(update={"kind": "model", "sampling": sampling})
            with local_orchestrator(spec.model_copy(update={"draft": draft})) as orchestrator:
                rows += _measure(orchestrator, sampling, prompts, max_tokens, answers, status.update)
    rows.sort(key=lambda row: (row.temperature, CASES.index((row.rule, row.drafts))))
    cells = [
        (
            f"{row.temperature:g}",
            row.rule,
            row.drafts,
            str(row.rounds),
            f"{row.rate:.3f} ± {row.rate_error:.3f}",
            f"{row.first:.3f}",
            f"{row.length:.2f}",
        )
        for row in rows
    ]
    counted = f"{len(prompts)} prompts, {answers} answers each, {max_tokens} tokens at most"
    title = f"{spec.name}: {counted}, K = {K}, draft model alone"
    columns = ("T", "rule", "drafts", "rounds", "acceptance", "first kept", "tokens/round")
    print_table(console, title, columns, cells)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
        console.print(f"written to {json_file}", highlight=False)
    return 0


def _measure(
    orchestrator: Orchestrator,
    drafts: DraftSampling,
    prompts: Sequence[Prompt],
    max_tokens: int,
    answers: int,
    tick: Callable[[str], None],
) -> list[Acceptance]:
    rows = []
    for rule in (rule for rule, sampling in CASES if sampling == drafts):
        for temperature in TEMPERATURES:
            tick(f"{rule}, drafts from {drafts}, temperature {temperature:g}")

            def answer(
                numbered: tuple[int, Prompt], rule: str = rule, warmth: float = temperature
            ) -> list[RequestStatistics]:
                seed, prompt = numbered
                request = GenerationRequest(
                    prompt.text,
                    max_tokens,
                    SamplingParams(warmth),
                    seed=seed,
                    num_draft_tokens=K,
                    acceptance_rule=rule,
                    num_return_sequences=answers,
                    chat=True,
                )
                ends = [chunk.statistics for chunk in orchestrator.generate(request)]
                return [statistics for statistics in ends if statistics is not None]

            with ThreadPoolExecutor(AT_ONCE) as pool:
                found = [part for parts in pool.map(answer, enumerate(prompts)) for part in parts]
            rows.append(_row(temperature, rule, drafts, found))
    return rows


def _row(temperature: float, rule: str, drafts: str, found: Sequence[RequestStatistics]) -> Acceptance:
    rounds = sum(part.spec_rounds for part in found)
    none_kept = sum(part.acceptance_histogram[0] for part in found if part.acceptance_histogram)
    # Acceptance lengths are means over speculative rounds: weighted by those.
    committed = sum(part.mean_acceptance_length * part.spec_rounds for part in found)
    drafted = sum(part.num_draft_tokens for part in found)
    accepted = sum(part.num_accepted_draft_tokens for part in found)
    rate = accepted / drafted if drafted else 0.0
    residuals = sum((part.num_accepted_draft_tokens - rate * part.num_draft_tokens) ** 2 for part in found)
    return Acceptance(
        temperature=temperature,
        rule=rule,
        drafts=drafts,
        rounds=rounds,
        rate=rate,
        rate_error=math.sqrt(residuals) / drafted if drafted else 0.0,
        first=1 - none_kept / rounds if rounds else 0.0,
        length=committed / rounds if rounds else 0.0,
    )
