"""Bad words: stop words, bad words, biases."""

from __future__ import annotations

from tests.served.error_case import ErrorCase, both, over_grpc, over_http
from tests.served.error_cases_values import NAN, NOT_TEXT

WORDS = "Words"
LONG_WORD = "x" * 1025

CASES: tuple[ErrorCase, ...] = (
    both(
        WORDS,
        "`stop_words` with an empty word",
        "stop_words = '': each must have 1 to 1024 characters",
        stop_words=["a", ""],
    ),
    both(WORDS, "`stop_words`: too many", "stop_words = '65 words': at most 64", stop_words=["a"] * 65),
    both(WORDS, "`stop_words`: a huge one", "each must have 1 to 1024 characters", stop_words=["x" * 5_000_000]),
    over_grpc(
        WORDS,
        "`stop_words`: not UTF-8",
        "stop_words = b'\\xfe\\xff': must be UTF-8; byte 0 is not",
        stop_words=b"\xfe\xff",
    ),
    over_http(WORDS, "`stop_words`: numbers", NOT_TEXT, 500, stop_words=[1, 2]),
    over_http(WORDS, "`stop_words`: an object", NOT_TEXT, 500, stop_words={"a": 1}),
    both(
        WORDS, "`bad_words` with an empty word", "bad_words = '': each must have 1 to 1024 characters", bad_words=[""]
    ),
    both(WORDS, "`bad_words`: too many", "bad_words = '65 words': at most 64", bad_words=["a"] * 65),
    both(WORDS, "`bad_words`: too long", "each must have 1 to 1024 characters", bad_words=[LONG_WORD]),
    over_grpc(
        WORDS, "`bad_words`: not UTF-8", "bad_words = b'a\\xff': must be UTF-8; byte 1 is not", bad_words=b"a\xff"
    ),
    both(
        WORDS,
        "`embedding_bias_words` without weights",
        "embedding_bias_weights = '0 weights': embedding_bias_words holds 1 words",
        embedding_bias_words=["a"],
    ),
    both(
        WORDS,
        "`embedding_bias_weights` without words",
        "embedding_bias_weights = '1 weights': embedding_bias_words holds 0 words",
        embedding_bias_weights=[1.0],
    ),
    both(
        WORDS,
        "`embedding_bias_words`: more words than weights",
        "embedding_bias_weights = '1 weights': embedding_bias_words holds 2 words",
        embedding_bias_words=["a", "b"],
        embedding_bias_weights=[1.0],
    ),
    over_grpc(
        WORDS,
        "`embedding_bias_weights`: a weight that is not a number",
        "embedding_bias_weights = nan: must be a number in [-1e+09, 1e+09]",
        embedding_bias_words=["a"],
        embedding_bias_weights=[NAN],
    ),
    both(
        WORDS,
        "`embedding_bias_weights`: an absurd weight",
        "must be a number in [-1e+09, 1e+09]",
        embedding_bias_words=["a"],
        embedding_bias_weights=[1e10],
    ),
    both(
        WORDS,
        "`embedding_bias_words`: an empty word",
        "embedding_bias_words = '': each must have 1 to 1024 characters",
        embedding_bias_words=[""],
        embedding_bias_weights=[1.0],
    ),
    both(
        WORDS,
        "`embedding_bias_words`: too many",
        "embedding_bias_words = '1025 words': at most 1024",
        embedding_bias_words=["a"] * 1025,
        embedding_bias_weights=[1.0] * 1025,
    ),
)
