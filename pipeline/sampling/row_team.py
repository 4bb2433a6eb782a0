"""Rows decided by several threads at once: they do not influence one another, so who decides them changes no bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from pipeline.sampling.call import VerifyCall
from pipeline.sampling.head import Head
from pipeline.sampling.verify import Decision, sample, verify

Result = TypeVar("Result")

WORTH = 1 << 21
"""Numbers per thread below which waking another one costs more than it saves."""


class RowTeam:
    """`verify` and `sample` over shares of the rows.

    torch's own threads would split every operation, and so meet at the end of each: 20 to 40 times a round.

    Args:
        threads: of the caller and its helpers together.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._helpers: ThreadPoolExecutor | None = None
        if threads > 1:
            self._helpers = ThreadPoolExecutor(threads - 1, "rows", initializer=partial(torch.set_num_threads, 1))

    def verify(self, logits: Tensor, calls: Sequence[VerifyCall], overwrite: bool = False) -> list[Decision]:
        """See `verify.verify`; logits [rows, P, vocab]."""
        return self._run(logits, lambda part, rows: verify(part, calls[rows], overwrite))

    def sample(
        self, logits: Tensor, calls: Sequence[VerifyCall], head: Head | None = None, overwrite: bool = False
    ) -> list[int]:
        """See `verify.sample`; logits [rows, width]."""
        return self._run(logits, lambda part, rows: sample(part, calls[rows], head, overwrite))

    def close(self) -> None:
        """End the helpers; nothing may run."""
        if self._helpers is not None:
            self._helpers.shutdown()

    def _run(self, logits: Tensor, work: Callable[[Tensor, slice], list[Result]]) -> list[Result]:
        rows = logits.shape[0]
        shares = min(self._threads, rows, logits.numel() // WORTH)
        if self._helpers is None or shares < 2 or logits.device.type != "cpu":
            return work(logits, slice(None))
        bounds = [rows * i // shares for i in range(shares + 1)]
        parts = [slice(first, last) for first, last in pairwise(bounds)]

        def share(part: slice) -> list[Result]:
            with torch.inference_mode(inference):
                return work(logits[part], part)

        inference = torch.is_inference_mode_enabled()  # it is the thread's own
        helped = [self._helpers.submit(share, part) for part in parts[1:]]
        try:
            found = share(parts[0])
        finally:
            # Whatever happened here: nobody may still write to the logits when the caller goes on.
            others = [job.exception() for job in helped]
        for error in others:
            if error is not None:
                raise error
        return found + [result for job in helped for result in job.result()]
