"""Words as token ids, with the tokenizers of both kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import InvalidRequestError
from pipeline.text.tokenizer import Tokenizer
from pipeline.text.words import bad_word_ids, bias_by_id


@pytest.mark.parametrize("word", ["fox", "the", "日本", "two words é", "x != 0"])
def test_bad_words_as_they_stand_in_a_text(byte_level_folder: Path, word: str) -> None:
    """At the beginning of a text and after a space the same word has other tokens; both are banned."""
    tokenizer = Tokenizer.load(byte_level_folder)
    ids = bad_word_ids([word], tokenizer)
    assert [tokenizer.decode(word_ids) for word_ids in ids] == [word, " " + word]
    assert ids == bad_word_ids([word, word, " " + word], tokenizer)


def test_a_word_that_begins_with_white_space_is_as_it_is(byte_level_folder: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_folder)
    for word in (" fox", "\nfox", "  "):
        assert [tokenizer.decode(ids) for ids in bad_word_ids([word], tokenizer)] == [word]


def test_no_special_tokens_are_added(byte_fallback_folder: Path) -> None:
    """A tokenizer that puts BOS before every text does not do so here; special tokens in the words are themselves."""
    tokenizer = Tokenizer.load(byte_fallback_folder)
    assert tokenizer.encode("ab")[0] == tokenizer.bos_id
    for ids in bad_word_ids(["ab"], tokenizer):
        assert tokenizer.bos_id not in ids
    assert dict(bias_by_id([("</s>", 2.0)], tokenizer)) == {tokenizer.eos_id: 2.0}


def test_every_token_of_a_word_is_biased(byte_level_folder: Path) -> None:
    """As NVIDIA's preprocessing does; weights of shared tokens add up, also within a word."""
    tokenizer = Tokenizer.load(byte_level_folder)
    bias = dict(bias_by_id([("!", 1.0), ("!!", 0.25), ("?", -3.0)], tokenizer))
    (mark,) = tokenizer.encode("!", add_special_tokens=False)
    (question,) = tokenizer.encode("?", add_special_tokens=False)
    assert bias == {mark: 1.5, question: -3.0}
    assert bias_by_id([], tokenizer) == ()


def test_a_word_without_a_token(byte_level_folder: Path) -> None:
    tokenizer = Tokenizer.load(byte_level_folder)
    with pytest.raises(InvalidRequestError, match="bad_words = '': the tokenizer makes no token of it"):
        bad_word_ids([""], tokenizer)
    with pytest.raises(InvalidRequestError, match="embedding_bias_words = ''"):
        bias_by_id([("", 1.0)], tokenizer)
