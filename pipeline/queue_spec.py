"""How requests wait for their turn: priorities, and for how long."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.errors import InvalidRequestError
from pipeline.strict import Strict


class QueueSpec(Strict):
    """The order of the waiting line. A priority is a head start in seconds, so that nobody waits for ever.

    A request of level n stands in line as if it had arrived (n - 1) x `head_start_s` later: within a level the first
    comes first, and a request is overtaken only by those of a better level that arrive within the difference.
    """

    priority_levels: int = Field(3, ge=1, le=16, description="1 is served first; a request names its level")
    default_priority: int = Field(2, ge=1, description="level of a request that names none")
    head_start_s: float = Field(10.0, ge=0, allow_inf_nan=False, description="of each level before the next")
    timeout_s: float = Field(120.0, gt=0, allow_inf_nan=False, description="longest wait; then refused: try again")

    @model_validator(mode="after")
    def _default_exists(self) -> QueueSpec:
        if self.default_priority > self.priority_levels:
            raise ValueError(
                f"default_priority = {self.default_priority} is above priority_levels = {self.priority_levels}"
            )
        return self

    def place(self, arrived: float, priority: int) -> float:
        """Where a request stands in line; smaller is served first.

        Args:
            arrived: seconds on any clock, the same for all.
            priority: its level, or 0 for the default.

        Raises:
            InvalidRequestError: there is no such level.
        """
        if not 0 <= priority <= self.priority_levels:
            limit = f"must be a level from 1 (served first) to {self.priority_levels}, or 0 for the default"
            raise InvalidRequestError("priority", priority, limit)
        return arrived + ((priority or self.default_priority) - 1) * self.head_start_s
