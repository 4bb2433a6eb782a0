"""A model's own tokenizer, read from its Hugging Face folder without transformers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers

from pipeline.errors import EngineError
from pipeline.text.chat_template import ChatTemplate

TOKENIZER_NAME = "tokenizer.json"
CONFIG_NAME = "tokenizer_config.json"


class Tokenizer:
    """Text <-> token ids, as the model was trained with. Safe to share between threads."""

    def __init__(self, backend: tokenizers.Tokenizer, config: dict[str, Any], folder: Path) -> None:
        """Use `load`; this is for tests.

        Args:
            backend: the library's tokenizer.
            config: tokenizer_config.json: bos_token, eos_token, add_bos_token, chat_template.
            folder: named in errors; chat_template.jinja is looked for there.
        """
        # A tokenizer.json saved in training may cut or pad; here either would change a prompt in silence.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._config = config
        self._folder = folder
        self._chat_template: ChatTemplate | None = None
        self.bos_id = self._named_id("bos_token")
        self.eos_id = self._named_id("eos_token")
        self.special_ids = frozenset(
            number for number, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)  # padding of the logits not included
        # Whether tokens such as <0xE2> stand for single bytes (SentencePiece vocabularies).
        self.byte_fallback = backend.decoder is not None and b"ByteFallback" in backend.decoder.__getstate__()
        flag = config.get("add_bos_token")
        self._add_bos: bool | None = None if flag is None or self.bos_id is None else bool(flag)

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read tokenizer.json and, if present, tokenizer_config.json, config.json.

        Raises:
            EngineError: tokenizer.json is missing, or one of the files is damaged; names the path.
        """
        folder = Path(folder)
        path = folder / TOKENIZER_NAME
        if not path.is_file():
            raise EngineError(f"tokenizer {path} is missing")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise EngineError(f"tokenizer {path} is damaged: {error}") from error
        config = read_json(folder / CONFIG_NAME)
        for name in ("special_tokens_map.json", "config.json"):
            if "bos_token" not in config or "eos_token" not in config:  # null says that there is none
                config = {**_named_tokens(read_json(folder / name), backend), **config}
        return cls(backend, config, folder)

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The library's object, for comparing tokenizers."""
        return self._backend

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; special tokens written in the text (`<|im_start|>`) become their single ids.

        Args:
            text: any string. A chat template writes its own BOS: encode its result without special tokens.
            add_special_tokens: add BOS where the tokenizer's configuration says so.
        """
        add_by_backend = add_special_tokens and self._add_bos is None
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_by_backend).ids
        if add_special_tokens and self._add_bos and self.bos_id is not None:
            return [self.bos_id, *ids]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of all ids together; special tokens and ids beyond the vocabulary give nothing.

        Bytes that are no UTF-8 become U+FFFD.
        """
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def apply_chat_template(self, user_text: str) -> str:
        """The prompt for one user message, up to where the assistant's answer begins.

        Raises:
            EngineError: the folder has no chat template, or the template fails.
        """
        if self._chat_template is None:
            self._chat_template = ChatTemplate.load(self._folder, self._config)
        return self._chat_template.render([{"role": "user", "content": user_text}])

    def token(self, token_id: int) -> str | None:
        """The vocabulary's spelling of a token (not its text), None beyond the vocabulary."""
        return self._backend.id_to_token(token_id)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its spelling, None if there is none."""
        return self._backend.token_to_id(token)

    def _named_id(self, key: str) -> int | None:
        token = token_text(self._config.get(key))
        return None if token is None else self.token_id(token)


def token_text(value: Any) -> str | None:
    """A special token in tokenizer_config.json: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file.

    Raises:
        EngineError: the file cannot be read or is no JSON object.
    """
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} is damaged: {error}") from error
    if not isinstance(data, dict):
        raise EngineError(f"{path} is damaged: expected a JSON object, found {type(data).__name__}")
    return data


def _named_tokens(data: dict[str, Any], backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """bos_token and eos_token, named or by id as in config.json (the first where it lists several)."""
    found: dict[str, Any] = {}
    for key in ("bos_token", "eos_token"):
        number = data.get(f"{key}_id")
        number = number[0] if isinstance(number, list) and number else number
        token = token_text(data.get(key))
        if token is None and isinstance(number, int):
            token = backend.id_to_token(number)
        if token is not None:
            found[key] = token
    return found
