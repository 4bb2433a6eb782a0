"""What is refused before any work is done."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import InvalidRequestError
from pipeline.orchestrator.admission import Admission
from pipeline.sampling.params import SamplingParams

from .scripted import (
    ByteTokenizer,
    ask,
    make_rig,
    run,
)

SCRIPT = "the quick brown fox jumps over the lazy dog"
SAMPLED = SamplingParams(temperature=1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_draft_tokens": 9}, "num_draft_tokens = 9: the target verifies at most 8 draft tokens"),
        ({"max_tokens": 199}, r"max_tokens = 199: prompt \(2 tokens\) \+ max_tokens must not exceed .* = 200"),
        ({"text_input": "x" * 200}, "text_input = '200 tokens': must be shorter than max_seq_len = 200"),
        ({"acceptance_rule": "typical"}, "acceptance_rule = 'typical': this target offers auto, block, token, match"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    """Each names the field, the value and the limit, before any engine is touched."""
    rig = make_rig(SCRIPT)
    with pytest.raises(InvalidRequestError, match=message):
        run(rig, ask(**changes))
    assert not rig.target.calls


def test_a_prompt_without_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that the tokenizer drops cannot be continued."""
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text, add_special_tokens=True: [])
    with pytest.raises(InvalidRequestError, match="text_input = '> ': holds no token"):
        run(make_rig(SCRIPT))


def test_what_cannot_fit_the_pool_is_refused() -> None:
    """A request that an empty pool could not hold never waits."""
    rig = make_rig(SCRIPT)
    rig.orchestrator.admission = Admission(3, 8, 4)
    with pytest.raises(InvalidRequestError, match="the KV pool holds 24 tokens"):
        run(rig)
