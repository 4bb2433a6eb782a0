"""docs/openapi.json: made from the contract, with the limits that hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.serving.contract import SPEC_DECODE
from pipeline.serving.generation import decode_generation
from pipeline.serving.openapi import PATH, describe

REQUEST: dict[str, Any] = describe()["components"]["schemas"]["Request"]["properties"]


def decode(**values: Any) -> GenerationRequest:
    given: dict[str, Any] = {"text_input": "sea", "max_tokens": 64, **values}
    tensors = {}
    for name, value in given.items():
        items = [item.encode() if isinstance(item, str) else item for item in np.ravel(value).tolist()]
        tensors[name] = np.array(items, SPEC_DECODE.input(name).dtype).reshape(1, -1)
    return decode_generation(tensors, {}, "")


def test_the_file_is_what_is_described() -> None:
    assert json.loads(PATH.read_text()) == describe()


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (name, schema.get("const", schema.get(key)), schema.get("const", schema.get(key)) + step)
        for name, schema in REQUEST.items()
        for key, step in (("minimum", -1), ("maximum", 1), ("const", 1))
        if key in schema and name not in ("seed", "end_id", "min_tokens")  # of 64 bits; known to the target alone
    ],
)
def test_limits_hold(name: str, good: float, bad: float) -> None:
    decode(**{name: good})
    with pytest.raises(InvalidRequestError, match=f"{name} = "):
        decode(**{name: bad})


@pytest.mark.parametrize("name", ["stop_words", "bad_words"])
def test_limits_of_words_hold(name: str) -> None:
    most, longest = REQUEST[name]["maxItems"], REQUEST[name]["items"]["maxLength"]
    decode(**{name: ["x" * longest] * most})
    for words in (["x"] * (most + 1), ["x" * (longest + 1)], [""]):
        with pytest.raises(InvalidRequestError, match=f"{name} = "):
            decode(**{name: words})


def test_an_empty_prompt_and_top_p_are_outside() -> None:
    assert REQUEST["text_input"]["minLength"] == 1 and REQUEST["top_p"]["exclusiveMinimum"] == 0
    for values in ({"text_input": ""}, {"top_p": 0.0}):
        with pytest.raises(InvalidRequestError):
            decode(**values)
