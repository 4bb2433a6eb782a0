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

    A text must be a string that is not empty, a kind a string.
    """
    prompts: list[Prompt] = []
    seen: set[str] = set()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"prompts {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"prompts {path}: byte {error.start} is not UTF-8") from error
    # Not splitlines: a JSON string may hold separators that it takes for line ends.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(json.loads(line))
        except ValueError as error:
            raise SpecError(f"{path}:{number}: must be a JSON object with a key text ({error})") from error
        if prompt.text in seen:
            # A repeated prompt is answered out of the prefix cache and flatters whoever comes second.
            raise SpecError(f"{path}:{number}: the prompt stands in an earlier line already")
        seen.add(prompt.text)
        prompts.append(prompt)
    if not prompts:
        raise SpecError(f"{path} holds no prompt")
    return prompts


def _prompt(data: object) -> Prompt:
    """Raises: ValueError: saying what is wrong with it."""
    if not isinstance(data, dict):
        raise ValueError(f"it is a {type(data).__name__}")
    for key, value in (("text", data.get("text")), ("kind", data.get("kind", "text"))):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{key} = {value!r}: must be a string that is not empty")
    return Prompt(data.get("kind", "text"), data["text"])
