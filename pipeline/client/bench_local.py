"""The in-process half of `specdec bench`: what others decode on the same weights, and served against in-process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from pipeline.bench.contest import Asked, Decode, Ratio, Standings, hold
from pipeline.bench.llama_cpp import PLAIN as LLAMA_CPP
from pipeline.bench.llama_cpp import LlamaCpp, gguf_files
from pipeline.bench.transformers_decoders import DTYPES, plain_name, transformers_decoders
from pipeline.client.bench_served import ServedBench
from pipeline.client.local import local_orchestrator
from pipeline.client.prompts import Prompt
from pipeline.engine.embedded import load_step_model
from pipeline.engine.step import StepRequest
from pipeline.errors import SpecError
from pipeline.orchestrator.intake import NO_END_ID
from pipeline.orchestrator.request import GenerationRequest
from pipeline.spec import ROOT, DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

WARM_UP = Prompt("warm-up", "Say hello to the world and count to ten.")
OVERHEAD_K = 3  # the same work in both: the controller would answer timing with other K
OWN_PLAIN, OWN_SPECULATIVE = "own plain", "own speculative"


@dataclass(frozen=True)
class Others:
    """What is used instead of ours.

    Attributes:
        transformers: `generate`, plain and with its own speculation.
        few: fewer settings of it.
        llama_cpp: F16, plain and with the same draft.
    """

    transformers: bool = True
    few: bool = False
    llama_cpp: bool = False


@dataclass(frozen=True)
class OtherResult:
    """How ours did beside them, and the ratios that say so."""

    standings: Standings
    ratios: tuple[Ratio, ...]


def compare_with_others(
    spec: DeploymentSpec, prompts: Sequence[Prompt], max_tokens: int, others: Others, tick: Callable[[str], None]
) -> OtherResult:
    """Greedy decoding of exactly `max_tokens` tokens in this process, prompt by prompt in turn.

    The prompt is part of the time, and every contestant sees each prompt once; the system prompt of the chat template
    is in the caches of those that have one after the first.

    Raises:
        SpecDecodeError: an engine or a model folder that is missing.
    """
    target, draft = model_folders(spec)
    tokenizer = Tokenizer.load(spec.engine_dir("target"))
    asked = []
    for prompt in (WARM_UP, *prompts):
        text = tokenizer.apply_chat_template(prompt.text)
        asked.append(Asked(prompt.text, text, tuple(tokenizer.encode(text, add_special_tokens=False))))
    with ExitStack() as stack:
        tick("loading engines in this process")
        decoders: dict[str, Decode] = {}
        own = stack.enter_context(closing(load_step_model(spec.engine_dir("target"), spec.target.threads)))

        def plain(asked: Asked) -> int:
            request = StepRequest(f"bench-{time.monotonic_ns()}", asked.ids, max_tokens)
            return len(own.submit(request).result().output_ids)

        orchestrator = stack.enter_context(local_orchestrator(spec))

        def speculative(asked: Asked) -> int:
            request = GenerationRequest(
                asked.message, max_tokens, end_id=NO_END_ID, stream=True, exclude_input_in_output=True, chat=True
            )
            return sum(len(chunk.token_ids) for chunk in orchestrator.generate(request))

        decoders |= {OWN_PLAIN: plain, OWN_SPECULATIVE: speculative}
        assisted: list[str] = []
        if others.transformers:
            found, assisted = transformers_decoders(target, draft, max_tokens, others.few, tick)
            decoders |= found
        if others.llama_cpp:
            threads = spec.target.threads or os.cpu_count() or 1
            llama = stack.enter_context(LlamaCpp(*gguf_of(spec), threads, max_tokens, tick))
            decoders |= llama.decoders
        standings = hold(decoders, asked, tick)
    return OtherResult(standings, compared(standings, assisted))


def compared(standings: Standings, assisted: Sequence[str]) -> tuple[Ratio, ...]:
    """The ratios of interest among those who took part; `assisted`: transformers' ways to speculate."""
    ratios = [
        standings.ratio(OWN_PLAIN, plain_name(dtype)) for dtype in DTYPES if plain_name(dtype) in standings.speeds
    ]
    if assisted:
        ratios.append(standings.ratio(OWN_SPECULATIVE, standings.best(assisted)))
    llama = [name for name in standings.speeds if name.startswith(f"{LLAMA_CPP} (")]
    if LLAMA_CPP in standings.speeds:
        ratios += [standings.ratio(own, LLAMA_CPP) for own in (OWN_PLAIN, OWN_SPECULATIVE)]
    if llama:
        ratios.append(standings.ratio(OWN_SPECULATIVE, standings.best(llama)))
    return tuple(ratios)


def model_folders(spec: DeploymentSpec) -> tuple[Path, Path | None]:
    """Of target and draft; None where the spec drafts without a model.

    Raises:
        SpecError: a folder is not there.
    """
    draft = model_folder(spec.draft.model) if spec.draft.uses_model and spec.draft.model else None
    return model_folder(spec.target.model), draft


def gguf_of(spec: DeploymentSpec) -> tuple[Path, Path | None]:
    """A spec's models as llama.cpp reads them, written where they are not there yet.

    Raises:
        SpecError: a model that is not there, or cannot be written as GGUF here.
    """
    return gguf_files(*model_folders(spec), ROOT / ".cache" / "gguf")


def model_folder(name: str) -> Path:
    """The Hugging Face folder that a spec names.

    Raises:
        SpecError: it is not there.
    """
    folder = ROOT / ".cache" / "models" / name.removeprefix("demo:") if name.startswith("demo:") else ROOT / name
    if not folder.is_dir():
        raise SpecError(f"model folder {folder} is missing; run `make engines`")
    return folder


def served_over_local(
    spec: DeploymentSpec, served: ServedBench, prompts: Sequence[Prompt], max_tokens: int, tick: Callable[[str], None]
) -> list[float]:
    """Tokens per second served over in process, speculative with the same fixed K, one ratio per prompt."""
    ratios = []
    tick("loading engines in this process")
    with local_orchestrator(spec) as orchestrator:

        def run_local(prompt: Prompt) -> float:
            request = GenerationRequest(
                prompt.text,
                max_tokens,
                stream=True,
                exclude_input_in_output=True,
                num_draft_tokens=OVERHEAD_K,
                chat=True,
            )
            started = time.perf_counter()
            count = sum(len(chunk.token_ids) for chunk in orchestrator.generate(request))
            return count / (time.perf_counter() - started)

        def run_served(prompt: Prompt) -> float:
            seconds, ids, _ = served.speculative(prompt, OVERHEAD_K)
            return len(ids) / seconds

        for number, prompt in enumerate(prompts):
            tick(f"served and in process: {prompt.kind}")
            # Once uncounted: both have the prompt in their caches.
            run_local(prompt)
            run_served(prompt)
            if number % 2 == 0:
                local, remote = run_local(prompt), run_served(prompt)
            else:
                remote, local = run_served(prompt), run_local(prompt)
            ratios.append(remote / local)
    return ratios
