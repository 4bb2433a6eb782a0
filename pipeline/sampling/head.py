"""The tokens that an engine has logits for, where that is a part of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Head:
    """A reduced output layer: logit i is token ids[i]'s.

    Attributes:
        ids: [width] int64 token ids.
        places: [vocab] int64, where each token is among ids; -1 where it is not.
    """

    ids: Tensor
    places: IntArray

    @classmethod
    def of(cls, ids: Tensor, vocab: int) -> Head:
        places = np.full(vocab, -1, np.int64)
        places[ids.cpu().numpy()] = np.arange(len(ids))
        return cls(ids.to(torch.int64), places)
