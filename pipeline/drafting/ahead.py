"""One draft call that runs ahead: behind a block whose verdict is not known yet.

The block x_1 .. x_K is at the target. Meanwhile the draft is asked for y_0, y_1 .. y_K' behind it. If the target
commits x_1 .. x_K and y_0, then y_1 .. y_K' are drafts of the next round that cost no waiting; else they are dropped.
docs/scheduling.md says why the text's law stays the target's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pipeline.common_prefix import common_prefix
from pipeline.engine.step import StepModel, StepRequest, StepResult
from pipeline.engine.waiting import wait
from pipeline.errors import SpecDecodeError


class AheadCall:
    """Starts the call.

    Args:
        step_model: the draft engine.
        request: its input ends with the block.
        block: x_1 .. x_K.
        deadline_s: seconds from now after which it is abandoned.
    """

    def __init__(self, step_model: StepModel, request: StepRequest, block: Sequence[int], deadline_s: float) -> None:
        self._step_model = step_model
        self._request = request
        self._block = tuple(block)
        self._deadline = time.monotonic() + deadline_s
        self._committed: tuple[int, ...] | None = None
        self._future = step_model.submit(request)

    def follows(self, committed: Sequence[int]) -> bool:
        """Told what was committed behind the input of the block; false where this call has become useless."""
        if self._committed is not None:
            return False
        self._committed = tuple(committed)
        return len(committed) == len(self._block) + 1 and common_prefix(committed, self._block) == len(self._block)

    @property
    def ready(self) -> bool:
        """Whether its drafts are there and can be used."""
        if self._committed is None or not self._future.done():
            return False
        with suppress(SpecDecodeError):
            return self._fits(self._future.result())
        return False

    def result(self, check: Callable[[], None]) -> StepResult | None:
        """y_0 .. y_K', waited for; None where the target chose another token than y_0.

        Args:
            check: raises where the request is no longer wanted.

        Raises:
            StepError: the call failed or missed its deadline.
            CancelledError, RequestTimeoutError: from `check`.
        """
        left = max(0.0, self._deadline - time.monotonic())
        result = wait(self._step_model, self._request.request_id, self._future, left, "draft", check)
        return result if self._fits(result) else None

    def drop(self) -> None:
        """Nobody wants it any more."""
        if not self._future.done():
            self._future.cancel()  # one that has not begun never will
            self._step_model.stop(self._request.request_id)

    def _fits(self, result: StepResult) -> bool:
        ids = result.output_ids
        return self._committed is not None and len(ids) > 1 and ids[0] == self._committed[-1]
