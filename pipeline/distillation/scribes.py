"""Processes that write a corpus side by side.

On a CPU each has one thread: threads of one pass meet hundreds of times per token, and every meeting waits for the
slowest, which on a machine that others use as well is most of the time. On a GPU there is one process.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import psutil
import torch

from pipeline.distillation.corpus import POSITIONS, CorpusWriter, question_start
from pipeline.distillation.prompts import PromptMaker, TrainingPrompt
from pipeline.distillation.writer import Target
from pipeline.errors import EngineError
from pipeline.text.tokenizer import Tokenizer

MOST_WORKERS = 8
Report = Callable[[int, float], None]  # (output tokens so far, seconds so far)


@dataclass(frozen=True)
class _Task:
    """What one process needs; travels to it pickled."""

    target: Path
    folder: Path
    device: str
    number: int
    slots: int
    seed: int
    excluded: tuple[str, ...]
    given: tuple[TrainingPrompt, ...]
    threads: int | None
    tokens: int = 0
    seconds: float = 0.0


class Scribes:
    """Has several processes write shards into one folder.

    Args:
        target: a Hugging Face folder.
        folder: for the shards; is made.
        device: where they compute.
        workers: processes; None takes a process per core (at most MOST_WORKERS), or one on a GPU.
        slots: sequences at a time, each process.
        seed: every process has seeds of its own that follow from it.
        excluded, given: as PromptMaker takes them.
    """

    def __init__(
        self,
        target: Path,
        folder: Path,
        device: torch.device,
        workers: int | None,
        slots: int,
        seed: int,
        excluded: Iterable[str],
        given: Iterable[TrainingPrompt],
    ) -> None:
        on_cpu = device.type == "cpu"
        cores = min(psutil.cpu_count(logical=False) or os.cpu_count() or 1, MOST_WORKERS)
        self._workers = workers or (cores if on_cpu else 1)
        self._folder = folder
        given = tuple(given)
        self._tasks = [
            _Task(
                target,
                folder,
                str(device),
                i,
                slots,
                seed * 1000 + i,
                tuple(excluded),
                given[i :: self._workers],
                1 if on_cpu else None,
            )
            for i in range(self._workers)
        ]

    def run(self, tokens: int, seconds: float, report: Report) -> None:
        """Write until there are `tokens` output tokens in all, or `seconds` have passed.

        Raises:
            EngineError: a process failed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        counts = [context.Value("q", 0) for _ in self._tasks]
        share = -(-tokens // self._workers)
        processes = [
            context.Process(target=_work, args=(replace(task, tokens=share, seconds=seconds), count), daemon=True)
            for task, count in zip(self._tasks, counts, strict=True)
        ]
        started = time.monotonic()
        for process in processes:
            process.start()
        try:
            while any(process.is_alive() for process in processes):
                time.sleep(0.2)
                report(sum(count.value for count in counts), time.monotonic() - started)
        except BaseException:
            for process in processes:
                process.terminate()
            raise
        for process in processes:
            process.join()
            if process.exitcode != 0:
                raise EngineError(
                    f"a process that writes text ended with status {process.exitcode}; its error stands above"
                )


def _work(task: _Task, count: Synchronized[int]) -> None:
    if task.threads is not None:
        torch.set_num_threads(task.threads)
    tokenizer = Tokenizer.load(task.target)
    start = question_start(tokenizer)
    maker = PromptMaker(task.seed, task.excluded, start is not None, task.given, start)
    target = Target(task.target, torch.device(task.device), POSITIONS)

    def report(tokens: int, seconds: float) -> None:
        count.value = tokens

    writer = CorpusWriter(target, tokenizer, maker, task.slots, task.seed)
    writer.write(task.folder, str(task.number), task.tokens, task.seconds, report)
