"""A model's chat template: Jinja, in the environment that Hugging Face templates are written for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pipeline.errors import EngineError

TEMPLATE_NAME = "chat_template.jinja"
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class ChatTemplate:
    """Messages -> prompt. Templates come with downloaded models, so they run in Jinja's sandbox."""

    def __init__(self, source: str, special_tokens: dict[str, str], origin: Path) -> None:
        """
        Args:
            source: the template's text.
            special_tokens: names that templates use, e.g. bos_token, to their text.
            origin: the model folder, named in errors.

        Raises:
            EngineError: not a valid template.
        """
        self._special_tokens = special_tokens
        self._origin = origin
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise EngineError(f"the chat template of {origin} is not valid Jinja: {error}") from error

    @classmethod
    def load(cls, folder: Path, config: dict[str, Any]) -> ChatTemplate:
        """From chat_template.jinja, else from `chat_template` in tokenizer_config.json.

        Raises:
            EngineError: the folder has neither, or the template is damaged.
        """
        path = folder / TEMPLATE_NAME
        try:
            source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
        except (OSError, ValueError) as error:
            raise EngineError(f"{path} cannot be read: {error}") from error
        if isinstance(source, list):  # several templates by name
            named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
            source = named.get("default")
        if not isinstance(source, str):
            raise EngineError(
                f"{folder} has no chat template ({TEMPLATE_NAME} or chat_template in tokenizer_config.json): "
                "a base model takes plain text, without a chat template"
            )
        tokens: dict[str, str] = {}
        for name in SPECIAL_TOKENS:
            value = config.get(name)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                tokens[name] = value
        return cls(source, tokens, folder)

    def render(self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The prompt.

        Args:
            messages: in order, each with `role` and `content`.
            add_generation_prompt: end where the assistant's answer begins.

        Raises:
            EngineError: the template refuses the messages or fails.
        """
        try:
            return self._template.render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except Exception as error:  # a template may fail with any error of the code it calls
            raise EngineError(f"the chat template of {self._origin} failed: {error}") from error


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; its body is kept as it is."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which a prompt must not contain."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
