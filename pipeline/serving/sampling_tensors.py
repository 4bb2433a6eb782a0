"""SamplingParams as named tensors, both ways: names, dimensions and defaults of NVIDIA's `tensorrt_llm` model.

`runtime_min_p` is ours: NVIDIA's engines have no min-p. Arrays have a leading batch dimension of 1; where
`reshape` has taken the last dimension away, a scalar arrives as [1].
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipeline.errors import InvalidRequestError
from pipeline.sampling.params import OPTIONS, TRUNCATIONS, SamplingParams, tensorrt_divisor
from pipeline.serving.contract import Array, Tensors
from pipeline.serving.dialect import OWN, Dialect

OFF = SamplingParams()

_NAMES = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "min_p": "runtime_min_p",
    "logit_bias": "embedding_bias",
    "bad_words": "bad_words_list",
}


def encode_sampling(sampling: SamplingParams, dialect: Dialect = OWN) -> Tensors:
    """Options as tensors. Top-k and top-p are always sent, "off" as off: absent, NVIDIA's engines are greedy.

    Args:
        sampling: the options; greedy ones go as top_k 1.
        dialect: of the engine. Where penalties act after the temperature, what is subtracted is scaled, so that the
            law is ours.

    Raises:
        InvalidRequestError: the engine cannot make the law that an option asks for.
    """
    _refuse(sampling, dialect)
    tensors: Tensors = {"runtime_top_k": np.array([[_top_k(sampling, dialect)]], np.int32)}
    scale = 1.0
    if dialect.temperature_first:
        scale = tensorrt_divisor(1.0 if sampling.greedy else sampling.temperature)
    options: dict[str, float] = {}
    if not sampling.greedy:
        options = {"temperature": sampling.temperature, "runtime_top_p": sampling.top_p}
        if sampling.min_p:
            options["runtime_min_p"] = sampling.min_p
    if sampling.repetition_penalty != 1.0:
        options["repetition_penalty"] = sampling.repetition_penalty
    if sampling.presence_penalty:
        options["presence_penalty"] = sampling.presence_penalty / scale
    if sampling.frequency_penalty:
        options["frequency_penalty"] = sampling.frequency_penalty / scale
    tensors.update({name: np.array([[value]], np.float32) for name, value in options.items()})
    if sampling.logit_bias:
        tensors["embedding_bias"] = _dense_bias(sampling.logit_bias, dialect.vocab_size)[None]
    if sampling.bad_words:
        tensors["bad_words_list"] = _flat_words(sampling.bad_words)[None]
    return tensors


def _refuse(sampling: SamplingParams, dialect: Dialect) -> None:
    # A greedy choice is sent as such: what acts behind the logits does not matter to it.
    sent = [name for name in OPTIONS if not (sampling.greedy and name in TRUNCATIONS)]
    for name in sent:
        value = getattr(sampling, name)
        if value != getattr(OFF, name) and name not in dialect.options:
            limit = f"the engine cannot apply it; it applies {', '.join(dialect.options)}"
            raise InvalidRequestError(name, value, limit)
    if dialect.temperature_first and sampling.logit_bias and sampling.repetition_penalty != 1.0:
        limit = "the engine applies it after the bias, which is another law: must be 1 where there is a bias"
        raise InvalidRequestError("repetition_penalty", sampling.repetition_penalty, limit)


def _top_k(sampling: SamplingParams, dialect: Dialect) -> int:
    if sampling.greedy:
        return 1
    if dialect.vocab_size is not None and sampling.top_k >= dialect.vocab_size:
        return 0  # keeps all
    if dialect.max_top_k is not None and sampling.top_k > dialect.max_top_k:
        limit = f"the engine keeps at most {dialect.max_top_k}: must be 0 (off) or at most that"
        raise InvalidRequestError("top_k", sampling.top_k, limit)
    return sampling.top_k


def decode_sampling(tensors: Mapping[str, Array]) -> SamplingParams:
    """The options that named tensors describe. Absent top_k means greedy, as NVIDIA's does.

    Raises:
        InvalidRequestError: naming the tensor, its value and its limit.
    """
    try:
        return SamplingParams(
            temperature=float(scalar_of(tensors, "temperature", 1.0)),
            top_k=int(scalar_of(tensors, "runtime_top_k", 1)),
            top_p=float(scalar_of(tensors, "runtime_top_p", 1.0)),
            min_p=float(scalar_of(tensors, "runtime_min_p", 0.0)),
            repetition_penalty=float(scalar_of(tensors, "repetition_penalty", 1.0)),
            presence_penalty=float(scalar_of(tensors, "presence_penalty", 0.0)),
            frequency_penalty=float(scalar_of(tensors, "frequency_penalty", 0.0)),
            logit_bias=_sparse_bias(tensors),
            bad_words=_words(tensors),
        )
    except InvalidRequestError as error:
        raise named_as_tensor(error) from None


def named_as_tensor(error: InvalidRequestError) -> InvalidRequestError:
    """The same error with the tensor's name where it has the option's."""
    return InvalidRequestError(_NAMES.get(error.field, error.field), error.value, error.limit)


def scalar_of(tensors: Mapping[str, Array], name: str, absent: bool | int | float) -> bool | int | float:
    """The one value of a tensor, or `absent`.

    Raises:
        InvalidRequestError: it does not hold one value.
    """
    values = tensors.get(name)
    if values is None:
        return absent
    if values.size != 1:
        raise InvalidRequestError(name, f"shape {list(values.shape)}", "must hold one value")
    found: bool | int | float = values.reshape(-1)[0].item()
    return found


def _dense_bias(bias: tuple[tuple[int, float], ...], vocab: int | None) -> Array:
    """[vocab] FP32."""
    ids = np.array([token for token, _ in bias], np.int64)
    largest = int(ids.max())
    if vocab is not None and largest >= vocab:
        raise InvalidRequestError("logit_bias", largest, f"must be a token id in [0, {vocab})")
    return np.bincount(ids, [weight for _, weight in bias], vocab or 0).astype(np.float32)


def _sparse_bias(tensors: Mapping[str, Array]) -> tuple[tuple[int, float], ...]:
    values = tensors.get("embedding_bias")
    if values is None:
        return ()
    if values.ndim != 2 or values.shape[0] != 1:
        raise InvalidRequestError("embedding_bias", f"shape {list(values.shape)}", "must be [1, vocab]")
    ids = values[0].nonzero()[0]
    return tuple(zip(ids.tolist(), values[0, ids].tolist(), strict=True))


def _flat_words(words: tuple[tuple[int, ...], ...]) -> Array:
    """[2, n] INT32: tokens of all words, and where each word ends, -1 behind the last."""
    tokens = [token for word in words for token in word]
    flat = np.full((2, len(tokens)), -1, np.int32)
    flat[0] = tokens
    flat[1, : len(words)] = np.cumsum([len(word) for word in words])
    return flat


def _words(tensors: Mapping[str, Array]) -> tuple[tuple[int, ...], ...]:
    values = tensors.get("bad_words_list")
    if values is None:
        return ()
    if values.ndim != 3 or values.shape[:2] != (1, 2):
        raise InvalidRequestError("bad_words_list", f"shape {list(values.shape)}", "must be [1, 2, n]")
    tokens, ends = values[0].tolist()
    ends = [end for end in ends if end != -1]
    starts = [0, *ends]
    if any(not start < end <= len(tokens) for start, end in zip(starts, ends, strict=False)):
        limit = f"must rise to at most the {len(tokens)} tokens, -1 behind the last"
        raise InvalidRequestError("bad_words_list", ends, limit)
    return tuple(tuple(tokens[start:end]) for start, end in zip(starts, ends, strict=False))
