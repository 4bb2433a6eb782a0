"""Prompts: different, of every kind, unlike what is measured on, and errors of a user's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.client.prompts import load_prompts
from pipeline.distillation.prompts import ASK, KINDS, PromptMaker, TrainingPrompt, read_prompts
from pipeline.errors import InvalidRequestError


def test_prompts_are_different_and_of_every_kind() -> None:
    maker = PromptMaker(0)
    prompts = [maker.next() for _ in range(800)]
    assert {prompt.kind for prompt in prompts} == set(KINDS)
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    assert not any("{" + word + "}" in prompt.text for prompt in prompts for word in ("topic", "name", "text", "code"))
    assert all(prompt.chat == (prompt.kind != "text") for prompt in prompts)


def test_a_seed_fixes_the_prompts() -> None:
    first, again, other = PromptMaker(1), PromptMaker(1), PromptMaker(2)
    texts = [maker.next().text for maker in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]


def test_nothing_resembles_the_prompts_that_are_measured_on() -> None:
    measured = [prompt.text for prompt in load_prompts()]
    maker = PromptMaker(0, measured)
    assert all(maker._resembles(text) for text in measured)
    assert maker._resembles(measured[0].replace("34", "35"))
    made = {maker.next().text for _ in range(500)}
    assert not made & set(measured)


def test_given_prompts_are_taken_and_excluded_ones_left_out() -> None:
    given = [TrainingPrompt("mine", f"my own question number {i} about xylophones") for i in range(5)]
    maker = PromptMaker(0, [given[0].text], given=given)
    taken = [prompt for prompt in (maker.next() for _ in range(60)) if prompt.kind == "mine"]
    assert taken == []  # all five say nearly the same as the excluded one
    maker = PromptMaker(0, given=given)
    assert [prompt for prompt in (maker.next() for _ in range(60)) if prompt.kind == "mine"] == given


def test_answers_become_material() -> None:
    maker = PromptMaker(0)
    passage = "The lake was frozen over. A quiet heron stood beside the old pier."
    for _ in range(300):
        maker.learn("story", passage)
    maker.learn("code", "Here:\n```python\nzebra = 1\nzebra += 2\nzebra *= 3\n```\nDone.")
    texts = [maker.next().text for _ in range(300)]
    assert any("quiet heron" in text for text in texts)
    assert any("zebra" in text for text in texts)


def test_the_target_asks_questions_of_its_own() -> None:
    maker = PromptMaker(0, question_start="<user>")
    asked = next(prompt for prompt in (maker.next() for _ in range(200)) if prompt.kind == ASK)
    assert asked.text == "<user>" and not asked.chat
    maker.learn(ASK, "Which animals sleep standing up?")
    assert any(prompt.text == "Which animals sleep standing up?" for prompt in (maker.next() for _ in range(200)))


@pytest.mark.parametrize("line", ["[1]", "{}", '{"text": ""}', '{"text": 3}', '{"text": "a", "chat": 1}', "{"])
def test_a_bad_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "fine"}\n\n' + line + "\n")
    with pytest.raises(InvalidRequestError, match=r"p\.jsonl:3"):
        read_prompts(path)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        read_prompts(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InvalidRequestError, match="holds no prompt"):
        read_prompts(tmp_path / "empty.jsonl")
