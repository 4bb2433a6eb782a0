"""Changes to the logits before the temperature, each at a few tokens of a row.

Order: repetition penalty, presence and frequency penalty, bias, then what is forbidden: bad words, and the end
token before min_tokens. All work on coordinates (row, position, token), of all rows at once: what a row does
not ask for costs nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipeline.errors import InvalidRequestError
from pipeline.sampling.context import NO_TOKEN, Context, count_tokens, tails
from pipeline.sampling.head import Head
from pipeline.sampling.params import SamplingParams

IntArray = npt.NDArray[np.int64]


def check_tokens(params: SamplingParams, end_id: int | None, vocab: int) -> None:
    """Refuse token ids that are none, and options that leave no token at all.

    Raises:
        InvalidRequestError: naming logit_bias, bad_words or end_id, the value and the limit.
    """
    for name, tokens in (
        ("logit_bias", (token for token, _ in params.logit_bias)),
        ("bad_words", itertools.chain.from_iterable(params.bad_words)),
        ("end_id", () if end_id is None else (end_id,)),
    ):
        for token in tokens:
            if not 0 <= token < vocab:
                raise InvalidRequestError(name, token, f"must be a token id in [0, {vocab})")
    last = {word[-1] for word in params.bad_words} | ({end_id} if end_id is not None else set())
    if params.bad_words and len(last) >= vocab:
        raise InvalidRequestError("bad_words", f"{len(last)} last tokens", f"must leave one of {vocab} tokens")


def edited(params: Sequence[SamplingParams], contexts: Sequence[Context]) -> bool:
    """Whether any row asks for a change."""
    return any(option.edited for option in params) or any(context.holds_end for context in contexts)


def edit(logits: Tensor, params: Sequence[SamplingParams], contexts: Sequence[Context], head: Head | None) -> None:
    """Change the logits in place.

    Args:
        logits: [rows, positions, width], contiguous, float32 or float64.
        params, contexts: one per row.
        head: which tokens the logits are of; None where all.
    """
    for change in (_penalise, _bias, _forbid):
        change(_Grid(logits, head), params, contexts)


@dataclass(frozen=True, eq=False)
class _Grid:
    """Logits addressed by (row, position, token)."""

    logits: Tensor
    head: Head | None

    @property
    def positions(self) -> int:
        return self.logits.shape[1]

    def places(self, row: IntArray, position: IntArray, token: IntArray) -> tuple[IntArray, IntArray]:
        """Flat index of each, and which of them are in the head at all."""
        if self.head is not None:
            token = self.head.places[token]
        known = (token >= 0).nonzero()[0]
        return ((row * self.positions + position) * self.logits.shape[2] + token)[known], known

    def read(self, places: IntArray) -> Tensor:
        return self.logits.view(-1)[self._tensor(places)]

    def write(self, places: IntArray, values: Tensor | float) -> None:
        at = self._tensor(places)
        self.logits.view(-1)[at] = torch.as_tensor(values, dtype=self.logits.dtype, device=self.logits.device)

    def column(self, values: npt.ArrayLike) -> Tensor:
        return torch.as_tensor(np.asarray(values, np.float64), dtype=self.logits.dtype, device=self.logits.device)

    def _tensor(self, places: IntArray) -> Tensor:
        return torch.from_numpy(places).to(self.logits.device)


def _penalise(grid: _Grid, params: Sequence[SamplingParams], contexts: Sequence[Context]) -> None:
    asked = [row for row, option in enumerate(params) if option.penalised]
    if not asked:
        return
    counts = count_tokens([contexts[row] for row in asked], grid.positions)
    entry, position = counts.count.nonzero()
    row, token = counts.row[entry], counts.token[entry]
    places, known = grid.places(np.array(asked)[row], position, token)
    row, times = row[known], counts.count[entry, position][known]
    options = [params[index] for index in asked]
    repetition = grid.column(np.array([option.repetition_penalty for option in options])[row])
    presence = np.array([option.presence_penalty for option in options])[row]
    frequency = np.array([option.frequency_penalty for option in options])[row]
    old = grid.read(places)
    grid.write(
        places, torch.where(old > 0, old / repetition, old * repetition) - grid.column(presence + frequency * times)
    )


def _bias(grid: _Grid, params: Sequence[SamplingParams], contexts: Sequence[Context]) -> None:
    asked = [(row, token, weight) for row, option in enumerate(params) for token, weight in option.logit_bias]
    if not asked:
        return
    row, token = (np.array(column, np.int64) for column in list(zip(*asked, strict=True))[:2])
    width = int(token.max()) + 1
    # One entry per row and token: weights of the same token add up.
    pairs, pair = np.unique(row * width + token, return_inverse=True)
    weight = np.bincount(pair, [weight for _, _, weight in asked])
    entry, position = (part.ravel() for part in np.indices((len(pairs), grid.positions)))
    places, known = grid.places((pairs // width)[entry], position, (pairs % width)[entry])
    grid.write(places, grid.read(places) + grid.column(weight[entry][known]))


def _forbid(grid: _Grid, params: Sequence[SamplingParams], contexts: Sequence[Context]) -> None:
    asked = [row for row, option in enumerate(params) if option.bad_words]
    if asked:
        words = [(owner, word) for owner, row in enumerate(asked) for word in params[row].bad_words]
        owner, last = np.array([owner for owner, _ in words]), np.array([word[-1] for _, word in words])
        length = max(len(word) for _, word in words) - 1
        before = np.full((len(words), length), NO_TOKEN, np.int64)
        for line, (_, word) in zip(before, words, strict=True):
            line[length - len(word) + 1 :] = word[:-1]
        seen = tails([contexts[row] for row in asked], grid.positions, length)[owner] if length else None
        shape = (len(words), grid.positions)
        ends = np.ones(shape, bool) if seen is None else _matches(seen, before)
        entry, position = ends.nonzero()
        grid.write(grid.places(np.array(asked)[owner[entry]], position, last[entry])[0], -torch.inf)
    held = [row for row, context in enumerate(contexts) if context.holds_end]
    if held:
        least = np.array([contexts[row].min_tokens for row in held])
        entry, position = (np.arange(grid.positions) < least[:, None]).nonzero()
        end_ids = np.array([contexts[row].end_id for row in held], np.int64)
        grid.write(grid.places(np.array(held)[entry], position, end_ids[entry])[0], -torch.inf)


def _matches(seen: IntArray, before: IntArray) -> npt.NDArray[np.bool_]:
    """[words, positions, length] tokens seen, [words, length] wanted -> [words, positions]."""
    found: npt.NDArray[np.bool_] = ((before == NO_TOKEN)[:, None] | (seen == before[:, None])).all(-1)
    return found
