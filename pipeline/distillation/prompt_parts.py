"""Words and forms of prompts, from `prompt_parts.json`."""

from __future__ import annotations

import json
import random
from pathlib import Path

PARTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("prompt_parts.json").read_text())
"""`ask_*`: forms of what is asked, by kind; `facts`, `code_to_edit`: forms of what is asked about; the rest: words."""


def words(rng: random.Random) -> dict[str, str | int]:
    """A word for every field that a form of `ask_chat`, `ask_story`, `ask_code`, `ask_text` or `facts` may have."""
    pick = rng.choice
    topic, thing, thing2, noun = (
        pick(PARTS["topics"]),
        pick(PARTS["things"]),
        pick(PARTS["things"]),
        pick(PARTS["nouns"]),
    )
    return {
        "topic": topic,
        "Topic": topic[0].upper() + topic[1:],
        "topic2": pick(PARTS["topics"]),
        "thing": thing,
        "Thing": thing.title(),
        "thing2": thing2,
        "Thing2": thing2.title(),
        "noun": noun,
        "Noun": noun.title(),
        "noun2": pick(PARTS["nouns"]),
        "verb": pick(PARTS["verbs"]),
        "name": f"{pick(PARTS['first'])} {pick(PARTS['last'])}",
        "job": pick(PARTS["jobs"]),
        "place": pick(PARTS["places"]),
        "place2": pick(PARTS["places"]),
        "company": pick(PARTS["companies"]),
        "month": pick(PARTS["months"]),
        "year": rng.randint(1850, 2025),
        "age": rng.randint(18, 80),
        "genre": pick(PARTS["genres"]),
        "hero": pick(PARTS["heroes"]),
        "hero2": pick(PARTS["heroes"]),
        "event": pick(PARTS["events"]),
        "language": pick(PARTS["languages"]),
        "task": pick(PARTS["code_tasks"]),
        "sql": pick(PARTS["sql_tasks"]),
        "n": rng.randint(2, 10),
        "a": rng.randint(2, 99),
        "b": rng.randint(2, 999),
        "h": rng.randint(2, 22),
        "m": f"{rng.randint(0, 59):02d}",
    }
