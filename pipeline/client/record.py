"""Records a trace of prompts in this process, so that a replay knows as much as it can."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import track

from pipeline.client.local import local_orchestrator
from pipeline.client.prompts import load_prompts
from pipeline.errors import SpecError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.orchestrator.trace.writer import check_trace_path
from pipeline.spec import DeploymentSpec

LONG_K = 8  # tries a draft at almost every place of the text
OTHER_K = (0, 1, 2, 4)  # in turns, for what they cost


def record_prompts(spec: DeploymentSpec, console: Console, prompts_file: Path, trace: Path, max_tokens: int) -> None:
    """Answer every prompt twice, greedily: with a long K, which shows what is accepted, and with another one.

    Raises:
        SpecDecodeError: an engine is missing, the prompts cannot be read, or the trace exists already.
    """
    if trace.exists():
        raise SpecError(f"trace {trace} exists already; it is replayed without --prompts, or must go first")
    prompts = load_prompts(prompts_file)
    check_trace_path(trace)
    most = spec.limits.max_draft_len
    with local_orchestrator(spec.model_copy(update={"trace": trace.resolve(), "speculation": "auto"})) as orchestrator:
        for number, prompt in enumerate(track(prompts, "recording", console=console, transient=True)):
            for k in (LONG_K, OTHER_K[number % len(OTHER_K)]):
                request = GenerationRequest(prompt.text, max_tokens, num_draft_tokens=min(k, most), chat=True)
                for _ in orchestrator.generate(request):
                    pass
