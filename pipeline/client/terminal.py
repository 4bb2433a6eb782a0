"""What a person sees: an answer as it is decoded, and tables of results. Plain text where the output is a pipe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

ACCEPTED_STYLE = "green"
TARGET_STYLE = "yellow"
LONG = 30  # characters of a first column that leave room for numbers on 80


def legend(console: Console) -> None:
    """Explain the colours; a pipe has none and needs no legend."""
    if console.is_terminal:
        line = Text()
        line.append("accepted draft tokens", ACCEPTED_STYLE)
        line.append(" · ")
        line.append("the target's own (correction, bonus, plain)", TARGET_STYLE)
        console.print(line)


def show_piece(console: Console, text: str, round_record: Mapping[str, Any] | None) -> None:
    """Print newly committed text; accepted drafts and corrections in different colours."""
    if round_record is None:
        pieces = [(text, "")]
    else:
        accepted, other = round_record["text"]
        pieces = [(accepted, ACCEPTED_STYLE), (other, TARGET_STYLE)]
    for piece, style in pieces:
        if piece:
            console.print(Text(piece, style), end="", soft_wrap=True)


def statistics_line(statistics: Mapping[str, Any], seconds: float) -> str:
    """One line about one request."""
    tokens = statistics["committed_tokens"]
    lengths = ", ".join(f"{k}: {n}" for k, n in statistics["histogram_by_draft_length"].items())
    return (
        f"{tokens} tokens in {seconds:.2f} s ({tokens / seconds if seconds else 0:.1f}/s), "
        f"{statistics['rounds']} rounds, acceptance length {statistics['mean_acceptance_length']:.2f}, "
        f"{statistics['num_accepted_draft_tokens']} of {statistics['num_draft_tokens']} drafts kept, "
        f"rounds by K {{{lengths}}}, finish: {statistics['finish_reason']}"
    )


def recording_console() -> Console:
    """A console that remembers what it shows, in colour."""
    return Console(record=True, force_terminal=True, width=100)


def save_picture(console: Console, path: Path, title: str) -> None:
    """Write what a recording console showed as SVG, without the web fonts that rich would load."""
    picture = console.export_svg(title=title)
    path.write_text(re.sub(r"@font-face\s*\{[^}]*\}", "", picture))


def print_table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table; the first column is text, the others are numbers. Long texts are wrapped, so that numbers are not."""
    lines = [tuple(row) for row in rows]
    long = max((len(line[0]) for line in lines), default=0) > LONG
    table = Table(title=title, title_justify="left", title_style="bold", padding=(0, 0, 0, 1))
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=(i == 0) != long)
    for line in lines:
        table.add_row(*line)
    console.print(table)
