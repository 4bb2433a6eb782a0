"""Columns of logits: one per token, and padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.engine.step import FloatArray

NEVER = np.float32(-1e9)
"""A logit that no softmax shows, also divided by any temperature; -inf would make NaN of a difference."""


def fit_columns(logits: FloatArray, vocab_size: int | None, width: int | None) -> FloatArray:
    """Logits whose columns from `vocab_size` on are impossible.

    Args:
        logits: [rows, columns].
        vocab_size: columns that are tokens; None: all.
        width: columns to return; None: as many as there are.

    Returns:
        [rows, width]: `logits` itself where it is that already.
    """
    columns = logits.shape[1]
    width = columns if width is None else width
    tokens = min(columns, width, width if vocab_size is None else vocab_size)
    if tokens == columns == width:
        return logits
    fitted = np.full((logits.shape[0], width), NEVER, np.float32)
    fitted[:, :tokens] = logits[:, :tokens]
    return fitted


def one_hot_logits(ids: Sequence[int], width: int) -> FloatArray:
    """[len(ids), width]: what a softmax takes for certainty of each token."""
    logits = np.full((len(ids), width), NEVER, np.float32)
    logits[np.arange(len(ids)), list(ids)] = 0.0
    return logits
