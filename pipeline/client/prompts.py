"""The prompts of demo, bench and load: short, unique, of several kinds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import SpecError

BUILT_IN = Path(__file__).with_name("prompts.jsonl")
REPETITIVE = ("json", "quote", "edit")
"""Kinds whose answers repeat their input."""


@dataclass(frozen=True)
class Prompt:
    """A user's message and the kind of text that answers it."""

    kind: str
    text: str


def load_prompts(path: Path = BUILT_IN) -> list[Prompt]:
    """Read JSONL with the keys `text` and (optionally) `kind`.

    Raises:
        SpecError: naming the line that is not such an object, or says what another line says.
    """
    prompts: list[Prompt] = []
    seen: set[str] = set()
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise SpecError(f"prompts {path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            prompt = Prompt(str(data.get("kind", "text")), str(data["text"]))
        except (ValueError, KeyError, AttributeError) as error:
            raise SpecError(f"{path}:{number}: must be a JSON object with a key text ({error})") from error
        if prompt.text in seen:
            # A repeated prompt is answered out of the prefix cache and flatters whoever comes second.
            raise SpecError(f"{path}:{number}: the prompt stands in an earlier line already")
        seen.add(prompt.text)
        prompts.append(prompt)
    if not prompts:
        raise SpecError(f"{path} holds no prompt")
    return prompts
