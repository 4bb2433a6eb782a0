"""The table of docs/errors.md, made of the cases: `python -m tests.served.error_table` writes it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from tests.served import error_cases_features, error_cases_steps, error_cases_values, error_cases_words
from tests.served.error_case import ErrorCase, Grpc, Http

DOC = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
BEGIN, END = "<!-- made by python -m tests.served.error_table -->\n", "<!-- end -->\n"
CASES: tuple[ErrorCase, ...] = (
    *error_cases_values.CASES,
    *error_cases_words.CASES,
    *error_cases_features.CASES,
    *error_cases_steps.CASES,
)


def rendered() -> str:
    """The tables, one per group."""
    parts = []
    for group, cases in groupby(CASES, key=lambda case: case.group):
        rows = [_row(case) for case in cases]
        parts.append(
            f"\n### {group}\n\n| what is sent | gRPC | HTTP | the message holds |\n|---|---|---|---|\n" + "".join(rows)
        )
    return "".join(parts) + "\n"


def documented(text: str) -> str:
    """What stands between the marks of docs/errors.md."""
    return text.split(BEGIN)[1].split(END)[0]


def _row(case: ErrorCase) -> str:
    said = dict.fromkeys(part.refusal.says for part in (case.grpc, case.http) if part is not None)
    shown = "; over HTTP ".join(f"`{text}`".replace("|", "\\|") for text in said)
    return f"| {case.what} | {_status(case.grpc)} | {_status(case.http)} | {shown} |\n"


def _status(part: Grpc | Http | None) -> str:
    return "" if part is None else str(part.refusal.status)


def main() -> None:
    text = DOC.read_text()
    DOC.write_text(text.replace(documented(text), rendered()))


if __name__ == "__main__":
    main()
