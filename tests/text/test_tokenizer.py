from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from pipeline.errors import EngineError
from pipeline.text.tokenizer import Tokenizer


def test_special_tokens_in_text_become_single_ids(byte_level_folder: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_folder)
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>")
    assert (ids[0], ids[-1]) == (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert tokenizer.decode(ids) == "user\nhi"
    assert tokenizer.vocab_size == Backend.from_file(str(byte_level_folder / "tokenizer.json")).get_vocab_size()
    assert tokenizer.special_ids == {0, 1, 2}


@given(text=st.text(max_size=40))
def test_decode_undoes_encode(byte_level_folder: Path, text: str) -> None:
    tokenizer = Tokenizer.load(byte_level_folder)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_beyond_the_vocabulary_have_no_text(byte_level_folder: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_folder)
    ids = tokenizer.encode("abc")
    assert tokenizer.decode([*ids, tokenizer.vocab_size, 10**6]) == "abc"


def test_bos_follows_the_post_processor(byte_fallback_folder: Path) -> None:
    tokenizer = Tokenizer.load(byte_fallback_folder)
    assert tokenizer.encode("ab")[0] == tokenizer.bos_id == 1
    assert tokenizer.encode("ab", add_special_tokens=False)[0] != 1


@pytest.mark.parametrize("flag", [True, False])
def test_add_bos_token_overrules_the_post_processor(
    byte_level_folder: Path, byte_fallback_folder: Path, tmp_path: Path, flag: bool
) -> None:
    for number, source in enumerate((byte_level_folder, byte_fallback_folder)):
        folder = Path(shutil.copytree(source, tmp_path / str(number)))
        _update(folder / "tokenizer_config.json", add_bos_token=flag)
        tokenizer = Tokenizer.load(folder)
        assert tokenizer.encode("ab").count(1) == int(flag)
        assert 1 not in tokenizer.encode("ab", add_special_tokens=False)


def test_truncation_and_padding_of_training_are_off(byte_level_folder: Path, tmp_path: Path) -> None:
    backend = Backend.from_file(str(byte_level_folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    plain = Tokenizer.load(byte_level_folder)
    for text in ("a", "a long text of many tokens"):
        assert Tokenizer.load(tmp_path).encode(text) == plain.encode(text)


def test_end_token_from_config_json(byte_level_folder: Path, tmp_path: Path) -> None:
    shutil.copy(byte_level_folder / "tokenizer.json", tmp_path)
    assert Tokenizer.load(tmp_path).eos_id is None
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [2, 0], "bos_token_id": None}))
    assert Tokenizer.load(tmp_path).eos_id == 2
    assert Tokenizer.load(tmp_path).bos_id is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": None}))
    assert Tokenizer.load(tmp_path).eos_id is None


def test_missing_and_damaged_files_are_named(byte_level_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path)
    whole = (byte_level_folder / "tokenizer.json").read_text()
    for damaged in (whole[: len(whole) // 2], "", "{}", "[1]"):
        (tmp_path / "tokenizer.json").write_text(damaged)
        with pytest.raises(EngineError, match=r"tokenizer\.json is damaged"):
            Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(whole)
    for damaged in ("{", "[]"):
        (tmp_path / "tokenizer_config.json").write_text(damaged)
        with pytest.raises(EngineError, match=r"tokenizer_config\.json is damaged"):
            Tokenizer.load(tmp_path)


@pytest.mark.demo
def test_demo_tokenizer_splits_digits(demo_folder: Path) -> None:
    tokenizer = Tokenizer.load(demo_folder)
    assert tokenizer.vocab_size == 49152
    assert [tokenizer.decode([number]) for number in tokenizer.encode("x  5")] == ["x", "  ", "5"]
    prompt = tokenizer.apply_chat_template("Hi")
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.encode(prompt)[0] == tokenizer.bos_id


def _update(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
