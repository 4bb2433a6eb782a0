"""`specdec bench`: what speculation is worth here, as ratios within one run, in tables, JSON and a page."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.bench.llama_cpp import HOW, is_installed
from pipeline.bench.page import save_page
from pipeline.client.bench_concurrency import (
    CONCURRENCIES,
    PAIRS,
    TEMPERATURES,
    LoadOptions,
    LoadResult,
    measure_load,
    print_acceptance,
    print_points,
    unique_prompts,
)
from pipeline.client.bench_local import (
    WARM_UP,
    OtherResult,
    Others,
    compare_with_others,
    gguf_of,
    served_over_local,
)
from pipeline.client.bench_served import FIXED_K, ServedBench, ServedResult
from pipeline.client.bench_tables import conditions, print_others, print_served, served_report
from pipeline.client.prompts import BUILT_IN, Prompt, load_prompts
from pipeline.client.serve import running_server
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.engine.fit import read_engine_manifest
from pipeline.errors import SpecError
from pipeline.serving.ports import FREE_PORTS
from pipeline.spec import DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

LOCAL_PROMPTS = 6
REFERENCE_TOKENS = 48
QUICK_PER_KIND, QUICK_PAIRS, QUICK_TOKENS, QUICK_REFERENCE = 2, 3, 24, 32


@dataclass(frozen=True)
class BenchOptions:
    """What is measured, and where it goes.

    Attributes:
        prompts_file: JSONL; None takes the built-in prompts.
        max_tokens: of an answer.
        json_file, page_file: written where given.
        quick: the short form: less of everything.
        concurrencies: None takes the usual ones; given, many requests at once are measured and nothing else.
        pairs: per concurrency and temperature; None takes the form's own number.
        llama_cpp: measure it, too, where its package is installed.
    """

    prompts_file: Path | None = None
    max_tokens: int = 64
    json_file: Path | None = None
    page_file: Path | None = None
    quick: bool = False
    concurrencies: tuple[int, ...] | None = None
    pairs: int | None = None
    llama_cpp: bool = False

    @property
    def reference_tokens(self) -> int:
        """Of an answer beside others."""
        return QUICK_REFERENCE if self.quick else REFERENCE_TOKENS

    @property
    def load(self) -> LoadOptions:
        """What is measured of many requests at once."""
        pairs = self.pairs or (QUICK_PAIRS if self.quick else PAIRS)
        tokens = min(self.max_tokens, QUICK_TOKENS) if self.quick else self.max_tokens
        return LoadOptions(self.concurrencies or CONCURRENCIES, pairs, tokens)


def run_bench(spec: DeploymentSpec, console: Console, options: BenchOptions) -> int:
    """Measure, print tables, write JSON and a page. Returns the exit status.

    Raises:
        SpecDecodeError: a prompt file, engine or server that is missing or cannot be used.
    """
    check_outputs(options.json_file, options.page_file)
    prompts = load_prompts(options.prompts_file or BUILT_IN)
    with_llama = options.llama_cpp and is_installed()
    if options.llama_cpp and not with_llama:
        console.print(HOW, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if with_llama:
        with console.status("writing both models as F16 GGUF"):
            gguf_of(spec)  # what cannot be written is said before anything is measured
    chosen = _per_kind(prompts, QUICK_PER_KIND) if options.quick else prompts
    mixed = _per_kind(prompts, 1)[:LOCAL_PROMPTS]
    manifest = read_engine_manifest(spec, "target")
    tokenizer = Tokenizer.load(spec.engine_dir("target"))
    report: dict[str, Any] = {"conditions": conditions(spec, options.max_tokens, options.quick)}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    only_load = options.concurrencies is not None
    results: list[ServedResult] = []
    with running_server(spec, console, FREE_PORTS) as server, Progress(*columns, console=console) as progress:
        if not only_load:
            with SpecDecodeClient(server.grpc_address) as client:
                bench = ServedBench(client, tokenizer, manifest.end_id, options.max_tokens)
                results = _measure_kinds(bench, chosen, () if options.quick else FIXED_K, progress)
                report |= served_report(results)
                report["timelines"] = [_timeline(bench, prompt) for prompt in mixed]
                local = progress.add_task("in process", total=None)
                ratios = served_over_local(
                    spec, bench, mixed, options.max_tokens, lambda what: progress.update(local, description=what)
                )
                progress.update(local, description="served and in process", total=1, completed=1)
                report["served_over_in_process"] = {"median": statistics.median(ratios), "ratios": ratios}
        load = options.load
        task = progress.add_task("", total=len(load.concurrencies) * len(TEMPERATURES) * load.pairs)
        pairs = -1

        def next_pair(what: str) -> None:
            nonlocal pairs
            pairs += 1
            progress.update(task, description=what, completed=pairs)

        found = measure_load(server.grpc_address, tokenizer, manifest.end_id, unique_prompts(prompts), load, next_pair)
        progress.update(task, description="many requests at once", completed=pairs + 1)
    report |= _load_report(found, load.max_tokens)
    report["acceptance"] = report.get("acceptance", {}) | _acceptance_report(found)
    _save(report, options.json_file)  # an hour's figures do not hang on what other people's programs do
    if not only_load or with_llama:
        mixed = mixed[::2] if options.quick else mixed  # every other kind: repetitive ones stand first
        few = Others(transformers=not only_load, few=options.quick, llama_cpp=with_llama)
        others = _measure_others(spec, mixed, options.reference_tokens, few, console)
        report["others"] = {**asdict(others.standings), "ratios": [asdict(ratio) for ratio in others.ratios]}
        report["others"]["max_tokens"] = options.reference_tokens
    if results:
        print_served(console, report, results, () if options.quick else FIXED_K)
    print_points(console, found.points, load.max_tokens)
    print_acceptance(console, found.acceptance)
    if "others" in report:
        print_others(console, report["others"])
    write_report(report, options.json_file, options.page_file, console)
    return 0


def write_report(report: dict[str, Any], json_file: Path | None, page_file: Path | None, console: Console) -> None:
    """Write the files that were asked for, and say so.

    Raises:
        SpecError: the page cannot be written.
    """
    _save(report, json_file)
    if json_file is not None:
        console.print(f"written to {json_file}", highlight=False, soft_wrap=True)
    if page_file is not None:
        save_page(json.loads(json.dumps(report)), page_file)
        console.print(f"page written to {page_file}", highlight=False, soft_wrap=True)


def check_outputs(*files: Path | None) -> None:
    """Make the folders of files that will be written.

    Raises:
        SpecError: one of them cannot be written.
    """
    for path in files:
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError(f"{path} cannot be written: {error.strerror}") from error
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise SpecError(f"{path} cannot be written: it is a folder, or its folder may not be written to")


def _save(report: dict[str, Any], json_file: Path | None) -> None:
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n")


def _measure_kinds(
    bench: ServedBench, prompts: Sequence[Prompt], fixed_k: Sequence[int], progress: Progress
) -> list[ServedResult]:
    results = []
    task = progress.add_task("served", total=len(prompts))
    bench.measure(WARM_UP, 0, ())
    for order, prompt in enumerate(prompts):
        progress.update(task, description=f"served: {prompt.kind}")
        results.append(bench.measure(prompt, order, fixed_k))
        progress.advance(task)
    progress.update(task, description="served, one at a time")
    return results


def _measure_others(
    spec: DeploymentSpec, prompts: Sequence[Prompt], max_tokens: int, others: Others, console: Console
) -> OtherResult:
    with console.status("what is used instead") as status:
        update: Callable[[str], None] = status.update
        return compare_with_others(spec, prompts, max_tokens, others, update)


def _per_kind(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    kinds = dict.fromkeys(prompt.kind for prompt in prompts)
    return [prompt for kind in kinds for prompt in [p for p in prompts if p.kind == kind][:count]]


def _timeline(bench: ServedBench, prompt: Prompt) -> dict[str, Any]:
    return {"kind": prompt.kind, "prompt": prompt.text[:60], "rounds": bench.rounds(prompt)}


def _load_report(found: LoadResult, max_tokens: int) -> dict[str, Any]:
    return {"load": {"max_tokens": max_tokens, "points": [asdict(point) for point in found.points]}}


def _acceptance_report(found: LoadResult) -> dict[str, Any]:
    return {
        f"{temperature:g}, all loads": {kind: asdict(counts) for kind, counts in kinds.items()}
        for temperature, kinds in found.acceptance.items()
    }
