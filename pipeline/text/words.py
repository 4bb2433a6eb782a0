"""Words of a request as the token ids they stand for: bad words and biased words.

What NVIDIA's `preprocessing` model does (tensorrtllm_backend, `inflight_batcher_llm/preprocessing`): a bad word is
the token sequence of its text; a bias is added to every token of its word, and sums up where words share a token.
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.errors import InvalidRequestError
from pipeline.text.tokenizer import Tokenizer


def bad_word_ids(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Token sequences that may not be completed, without repeats.

    A word is banned as it is written and, unless it begins with white space, with a space before it: inside a text
    most words are tokens that begin with their space. (NVIDIA bans the first spelling alone.)

    Raises:
        InvalidRequestError: a word that has no token.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        found[_ids("bad_words", word, tokenizer)] = None
        if not word[0].isspace():
            found[_ids("bad_words", " " + word, tokenizer)] = None
    return tuple(found)


def bias_by_id(words: Iterable[tuple[str, float]], tokenizer: Tokenizer) -> tuple[tuple[int, float], ...]:
    """(token id, bias) pairs, every id once: each token of a word gets the word's weight, as NVIDIA's do.

    No special token is added to a word. (NVIDIA's tokenizer call adds BOS where the model has one, and biases it, too.)
    Words are taken as they are written: "Paris" and " Paris" are different tokens.

    Raises:
        InvalidRequestError: a word that has no token.
    """
    found: dict[int, float] = {}
    for word, weight in words:
        for token in _ids("embedding_bias_words", word, tokenizer):
            found[token] = found.get(token, 0.0) + weight
    return tuple(found.items())


def _ids(field: str, word: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    ids = tuple(tokenizer.encode(word, add_special_tokens=False))
    if not ids:
        raise InvalidRequestError(field, word[:32], "the tokenizer makes no token of it")
    return ids
