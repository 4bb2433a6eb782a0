"""What `make audit` makes of pip-audit's report."""

from __future__ import annotations

import importlib.util
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[2] / "build" / "audit.py"
SPEC = importlib.util.spec_from_file_location("specdec_audit", PATH)
assert SPEC is not None and SPEC.loader is not None
audit = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(audit)

GOOD: dict[str, Any] = {"name": "good", "version": "1", "vulns": []}
BAD = {"name": "bad", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "odd", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("entries", "status", "says"),
    [
        ([GOOD], audit.CLEAN, "1 packages looked up, 0 known vulnerabilities"),
        ([GOOD, BAD, UNKNOWN], audit.VULNERABLE, "bad 2: PYSEC-1, fixed in 3"),
        ([GOOD, UNKNOWN], audit.UNKNOWN, "NOT audited, 1"),
        ([UNKNOWN], audit.UNKNOWN, "0 packages looked up"),
        ([], audit.UNKNOWN, "0 packages looked up"),
    ],
)
def test_not_looked_up_is_not_clean(entries: list[dict[str, Any]], status: int, says: str) -> None:
    """pip-audit itself exits with 0 where it could look up nothing."""
    lines, found = audit.verdict({"dependencies": entries})
    assert found == status and any(says in line for line in lines)


def test_licences_and_pins() -> None:
    assert audit.licence(distribution("numpy")) == "BSD License" and audit.licence(distribution("rich"))
    lines = [line for line in audit.REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert any(line.startswith(("pip-audit==", "pip_audit==")) for line in lines) and all(
        "==" in line for line in lines
    )
