"""Row counts for which a product's bits do not depend on the batch, found by trying them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pipeline.engine.linear import Linear

CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
LARGEST = 48  # rows; kernels repeat their blocks beyond


def row_multiple(products: Iterable[tuple[Linear, int]]) -> int | None:
    """The smallest m such that padding every call to a multiple of m rows makes a row's bits its own.

    A row is computed alone and padded to m, then at different places among 2m, 3m ... rows; all must agree bit
    for bit. Shapes and the machine decide, so it is measured where the engine runs.

    Args:
        products: (linear, input width) of every distinct shape.

    Returns:
        m, or None where no candidate holds.
    """
    generator = torch.Generator().manual_seed(0)
    cases = [(linear, torch.randn(LARGEST, width, generator=generator)) for linear, width in products]
    for multiple in CANDIDATES:
        if all(_invariant(linear, x, multiple) for linear, x in cases):
            return multiple
    return None


@torch.inference_mode()
def _invariant(linear: Linear, x: Tensor, multiple: int) -> bool:
    alone = torch.cat([_padded(linear, x[i : i + 1], multiple) for i in range(2 * multiple)])
    for count in range(multiple, LARGEST + 1, multiple):
        shared = linear(x[:count])
        known = min(count, alone.shape[0])
        if not torch.equal(shared[:known], alone[:known]):
            return False
        rotated = linear(x[:count].roll(1, 0)).roll(-1, 0)
        if not torch.equal(rotated[:known], alone[:known]):
            return False
    return True


def _padded(linear: Linear, row: Tensor, multiple: int) -> Tensor:
    return linear(torch.cat((row, row.new_zeros(multiple - 1, row.shape[1]))))[:1]
