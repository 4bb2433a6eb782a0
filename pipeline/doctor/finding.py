"""What a check found: one line of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "warning", "error", "not checked"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "not checked", "ok")  # worst first


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        what: what was found, with the field, the value and the limit.
        why: why it matters; empty for ok.
        todo: what to do, or what would check it; empty for ok.
    """

    check: str
    severity: Severity
    what: str
    why: str = ""
    todo: str = ""
