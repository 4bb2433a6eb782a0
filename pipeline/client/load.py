"""`specdec load`: perf_analyzer or genai-perf on the streaming model, plain and speculative side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pipeline.client.prompts import BUILT_IN, Prompt, load_prompts
from pipeline.client.serve import running_record, running_server
from pipeline.client.triton_client import SpecDecodeClient
from pipeline.errors import InvalidRequestError, ServerError
from pipeline.load.figures import LoadFigures, Mode
from pipeline.load.genai_perf import GenaiPerf
from pipeline.load.level import Level
from pipeline.load.perf_analyzer import PerfAnalyzer
from pipeline.load.picture import save
from pipeline.load.report import print_figures, write_csv, write_json
from pipeline.load.sweep import SweepOptions, sweep
from pipeline.load.tool import LoadTool
from pipeline.orchestrator.request import GenerationRequest
from pipeline.serving.ports import FREE_PORTS, HOST
from pipeline.spec import ROOT, DeploymentSpec

TOOLS = (PerfAnalyzer.name, GenaiPerf.name)
_WARM_UP = 4  # requests per mode, so that no run pays for first calls and unmeasured costs


@dataclass(frozen=True)
class LoadOptions:
    """What `specdec load` is asked for; the files are written into `folder`: load.json, load.csv, load.svg."""

    tool: str = PerfAnalyzer.name
    levels: tuple[Level, ...] = (Level("concurrency", 1),)
    prompts: Path | None = None
    requests: int = 12
    max_tokens: int = 24
    temperature: float = 0.0
    chat: bool = True
    tokenizer: str | None = None
    folder: Path | None = None


def run_load(spec: DeploymentSpec, url: str | None, options: LoadOptions, console: Console) -> int:
    """Measure, print, write. Returns the exit status.

    Args:
        url: host:port of gRPC; None: the running server of the spec, or one that is started for the run.

    Raises:
        InvalidRequestError: an unknown tool, or fewer requests than one second brings.
        ServerError: the tool or a server is missing or failed.
    """
    for level in options.levels:
        if options.requests < level.value:  # perf_analyzer wants as many as are sent at once, or in a second
            limit = f"must be at least {level.value:g}, for {level.label}"
            raise InvalidRequestError("requests", options.requests, limit)
    tokenizer = options.tokenizer or str(spec.engine_dir("target"))
    if options.tool == GenaiPerf.name and options.tokenizer is None and not spec.engine_dir("target").is_dir():
        raise ServerError(f"{tokenizer} is not there: name --tokenizer, a folder or a name on the Hugging Face hub")
    tool = make_tool(options.tool, tokenizer)
    prompts = load_prompts(options.prompts or BUILT_IN)
    folder = (options.folder or ROOT / "runs" / spec.name / "load").resolve()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    conditions = {
        "tool": tool.name,
        "deployment": spec.name,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "chat": options.chat,
        "prompts": (options.prompts or BUILT_IN).name,
    }
    figures: list[LoadFigures] = []
    with _address(spec, url, console) as address:
        with console.status(f"warming {address} up"):
            _warm_up(address, prompts, options)
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=2 * len(options.levels))

            def begin(level: Level, mode: Mode, done: int) -> None:
                progress.update(task, description=f"{tool.name}: {level.label}, {mode}", completed=done)

            shared = SweepOptions(
                address,
                options.requests,
                options.max_tokens,
                options.temperature,
                options.chat,
                spec.draft.uses_model,
                folder / tool.name,
            )
            for figures in sweep(tool, options.levels, prompts, shared, begin):
                write_json(folder / "load.json", conditions, figures)  # what is measured is not lost with a later level
                write_csv(folder / "load.csv", figures)
            progress.update(task, description="done", completed=2 * len(options.levels))
    print_figures(console, tool.name, figures, options.max_tokens)
    save(folder / "load.svg", f"{spec.name}, {tool.name}, up to {options.max_tokens} tokens", figures)
    console.print(f"written to {folder}/load.json, load.csv, load.svg", highlight=False, soft_wrap=True)
    return 0


def make_tool(name: str, tokenizer: str) -> LoadTool:
    """The tool of this name.

    Args:
        tokenizer: for tools that count tokens themselves.

    Raises:
        InvalidRequestError: there is none.
        ServerError: it is not installed.
    """
    if name not in TOOLS:
        raise InvalidRequestError("tool", name, f"must be one of {', '.join(TOOLS)}")
    return GenaiPerf(tokenizer) if name == GenaiPerf.name else PerfAnalyzer()


@contextmanager
def _address(spec: DeploymentSpec, url: str | None, console: Console) -> Iterator[str]:
    record = running_record(spec) if url is None else None
    if url is not None:
        yield url
    elif record is not None:
        yield f"{HOST}:{record.grpc}"
    else:
        with running_server(spec, console, FREE_PORTS) as server:
            yield server.grpc_address


def _warm_up(address: str, prompts: list[Prompt], options: LoadOptions) -> None:
    with SpecDecodeClient(address) as client:
        for number in range(_WARM_UP):
            text = f"Warm-up {number}. {prompts[number % len(prompts)].text}"
            for k in (0, None):
                request = GenerationRequest(
                    text, options.max_tokens, stream=True, chat=options.chat, num_draft_tokens=k
                )
                list(client.generate(request))
