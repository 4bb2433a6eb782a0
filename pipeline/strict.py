"""The base of every section of the deployment spec."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Cannot be changed once read, and refuses keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
