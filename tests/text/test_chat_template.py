from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path

import pytest

from pipeline.errors import EngineError
from pipeline.text.chat_template import ChatTemplate
from pipeline.text.tokenizer import Tokenizer

USER = [{"role": "user", "content": "a<b"}]


def render(source: str) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}, Path("model")).render(USER)


def test_user_message_and_generation_prompt(byte_level_folder: Path) -> None:
    prompt = Tokenizer.load(byte_level_folder).apply_chat_template("hi")
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_template_file_comes_first(byte_level_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(byte_level_folder, tmp_path / "model"))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}|")
    assert Tokenizer.load(folder).apply_chat_template("hi") == "hi|"


def test_default_of_several_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert ChatTemplate.load(tmp_path, {"chat_template": named}).render(USER) == "plain"


def test_environment_is_that_of_hugging_face() -> None:
    assert render("{{ bos_token }}{{ messages | tojson }}") == "<s>" + json.dumps(USER)
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    assert render("{% for m in [1, 2] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}") == "1"
    assert render("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"
    assert render("  {% if true %}\nx\n  {% endif %}\n") == "x\n"


def test_failures_name_the_folder(byte_fallback_folder: Path) -> None:
    with pytest.raises(EngineError, match="has no chat template"):
        Tokenizer.load(byte_fallback_folder).apply_chat_template("hi")
    with pytest.raises(EngineError, match="of model is not valid Jinja"):
        render("{% if %}")
    with pytest.raises(EngineError, match="of model failed: only assistants"):
        render("{{ raise_exception('only assistants') }}")
    with pytest.raises(EngineError, match="of model failed"):
        render("{{ messages[7].content.x }}")


def test_template_is_sandboxed() -> None:
    with pytest.raises(EngineError, match="unsafe"):
        render("{{ ''.__class__.__mro__ }}")
