"""Large arrays in huge pages: a pass reads every weight once, and would else look up an address every 4 KB."""

from __future__ import annotations

import math
import mmap

import numpy as np
import numpy.typing as npt

_HUGE_PAGE = 2 << 20


def zeros(count: int, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """A flat array of zeros, aligned to a huge page; its memory is taken as it is touched."""
    kind = np.dtype(dtype)
    size = count * kind.itemsize
    if size < _HUGE_PAGE:
        return np.zeros(count, kind)
    area = mmap.mmap(-1, size + _HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux
        area.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(area, np.uint8)
    start = math.ceil(whole.ctypes.data / _HUGE_PAGE) * _HUGE_PAGE - whole.ctypes.data
    return whole[start : start + size].view(kind)
