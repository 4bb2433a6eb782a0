"""Plain and speculative runs of every level, one right after the other, each with prompts that nobody has sent yet."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.client.prompts import Prompt
from pipeline.load.figures import MODES, PLAIN, LoadFigures, Mode
from pipeline.load.level import Level
from pipeline.load.tool import LoadRun, LoadTool
from pipeline.serving.contract import DRAFT_MODEL, TARGET_MODEL


@dataclass(frozen=True)
class SweepOptions:
    """What all runs of a sweep share.

    Attributes:
        address: host:port of gRPC.
        requests: per run.
        max_tokens: of an answer.
        temperature: 0 is greedy.
        chat: the server applies the target's chat template.
        drafts: the deployment has a draft model, whose calls are counted.
        folder: for what the tool writes, a folder per run.
    """

    address: str
    requests: int
    max_tokens: int
    temperature: float
    chat: bool
    drafts: bool
    folder: Path


def sweep(
    tool: LoadTool,
    levels: Sequence[Level],
    prompts: Sequence[Prompt],
    options: SweepOptions,
    begin: Callable[[Level, Mode, int], None],
) -> Iterator[list[LoadFigures]]:
    """Measure both modes at every level; who goes first alternates. Yields all runs so far after every level.

    Args:
        begin: told of every run as it begins: level, mode, how many are done.

    Raises:
        ServerError: the tool failed; its words are in the message.
    """
    chosen = random.Random(0).sample(prompts, len(prompts))
    stamp = f"{time.time_ns():x}"[-6:]  # another sweep on the same server sends other prompts
    found: list[LoadFigures] = []
    for number, level in enumerate(levels):
        for mode in MODES if number % 2 == 0 else reversed(MODES):
            begin(level, mode, len(found))
            folder = options.folder / f"{level.kind}-{level.value:g}-{mode}"
            folder.mkdir(parents=True, exist_ok=True)
            found.append(tool.measure(_run(level, mode, f"{stamp}.{len(found) + 1}", chosen, options, folder)))
        yield list(found)


def _run(
    level: Level, mode: Mode, name: str, prompts: Sequence[Prompt], options: SweepOptions, folder: Path
) -> LoadRun:
    # The same prompts in every run, each with a beginning of its own: no answer comes out of a cache.
    texts = [f"Request {name}.{i + 1}. {prompts[i % len(prompts)].text}" for i in range(options.requests)]
    return LoadRun(
        address=options.address,
        level=level,
        mode=mode,
        texts=tuple(texts),
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        chat=options.chat,
        composing=(TARGET_MODEL, DRAFT_MODEL) if options.drafts and mode != PLAIN else (TARGET_MODEL,),
        folder=folder,
    )
