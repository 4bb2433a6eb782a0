"""Synthetic texts to work on: records to extract as JSON, paragraphs to quote, code to edit."""

from __future__ import annotations

import json
import random

from pipeline.distillation.prompt_parts import PARTS, words

PEOPLE = (
    "{name} is a {job} from {place}, {age} years old.",
    "{name} ({age}) lives in {place} and is a {job}.",
    "My colleague {name}, a {job}, moved to {place} at the age of {age}.",
    "{name}, {job}, {place}, {age}",
    "At {age}, {name} is the youngest {job} in {place}.",
    "Name: {name}; age: {age}; city: {place}; job: {job}",
)
COLUMNS = (("item", "article", "thing"), ("cost", "amount", "weight"), ("id", "count"))
EVENTS = ("{noun} saved", "{noun} not found", "{verb} {noun} took {b} ms", "new {noun} {b}", "{noun} is {b}")


def paragraph(rng: random.Random) -> str:
    """Two to five sentences with names, places and numbers that can only be copied, not guessed."""
    return " ".join(form.format_map(words(rng)) for form in rng.sample(PARTS["facts"], rng.randint(2, 5)))


def code_to_edit(rng: random.Random) -> str:
    """A fenced piece of code with identifiers drawn at random."""
    a, b, c = rng.sample(PARTS["nouns"], 3)
    numbers = {"n": rng.randint(0, 99), "m": rng.randint(2, 12), "k": rng.randint(50, 200)}
    code = rng.choice(PARTS["code_to_edit"])
    return code.format(a=a, b=b, c=c, A=a.title(), verb=rng.choice(PARTS["verbs"]), **numbers)


def json_task(rng: random.Random) -> str:
    """A text, table, list or log whose records are to be written as JSON."""
    shape = rng.choice((_people, _people, _table, _log, _pairs, _sentence, _json_itself))
    keys, text = shape(rng)
    listed = ", ".join(keys[:-1]) + " and " + keys[-1]
    return rng.choice(PARTS["ask_json"]).format(keys=listed, text=text)


def _people(rng: random.Random) -> tuple[list[str], str]:
    form = rng.choice(PEOPLE)
    people = [form.format_map(words(rng)) for _ in range(rng.choice((1, 1, 2, 3)))]
    return rng.sample(["name", "age", "city", "job"], 4), rng.choice((" ", "\n")).join(people)


def _table(rng: random.Random) -> tuple[list[str], str]:
    columns = [rng.choice(names) for names in COLUMNS]
    bar = rng.choice((" | ", ",", "; ", "\t"))
    rows = [bar.join(columns)]
    for thing in rng.sample(PARTS["things"], rng.randint(2, 5)):
        rows.append(bar.join((thing, f"{rng.randint(1, 99)}.{rng.randint(0, 99):02d}", str(rng.randint(1, 500)))))
    return columns, "\n".join(rows)


def _log(rng: random.Random) -> tuple[list[str], str]:
    lines = []
    for _ in range(rng.randint(2, 4)):
        day = f"{rng.randint(2015, 2025)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        level = rng.choice(("DEBUG", "INFO", "WARN", "FATAL"))
        event = rng.choice(EVENTS).format_map(words(rng))
        lines.append(f"{day} {rng.randint(0, 23):02d}:{rng.randint(0, 59):02d} {level} {event}")
    return ["date", "severity", "text"], "\n".join(lines)


def _pairs(rng: random.Random) -> tuple[list[str], str]:
    keys = rng.sample(PARTS["nouns"], rng.randint(2, 5))
    sign = rng.choice((": ", " = ", " -> "))
    values = [rng.choice((str(rng.randint(1, 999)), *rng.sample(PARTS["things"] + PARTS["places"], 2))) for _ in keys]
    return keys, "\n".join(key + sign + value for key, value in zip(keys, values, strict=True))


def _sentence(rng: random.Random) -> tuple[list[str], str]:
    return rng.sample(["who", "what", "where", "when", "number"], 3), paragraph(rng)


def _json_itself(rng: random.Random) -> tuple[list[str], str]:
    name, city = words(rng)["name"], rng.choice(PARTS["places"])
    record = {"id": rng.randint(1, 9999), "name": name, "city": city, "items": rng.sample(PARTS["things"], 2)}
    return list(record), json.dumps(record, indent=rng.choice((None, 2)))
