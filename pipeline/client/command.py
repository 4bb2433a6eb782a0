"""What every file of the `specdec` command shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pipeline.errors import SpecDecodeError

console = Console()

SpecOption = Annotated[Path, typer.Option("--spec", help="deployment spec, a YAML file")]


def exit_with(work: Callable[[], int]) -> None:
    """Run a command; an error that a user can act on is one line and status 1."""
    try:
        status = work()
    except SpecDecodeError as error:
        Console(stderr=True).print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        status = 1
    except KeyboardInterrupt:
        status = 130
    raise typer.Exit(status)
