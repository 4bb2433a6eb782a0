"""The CPU forward pass as machine code, compiled for the machine that builds the engines and kept for those that run.

Numba finds a kept function by its own file alone; these files are compiled into one another, so the place where
they are kept is named after all of them.
"""

import hashlib
from pathlib import Path

import numba

from pipeline.spec import ROOT

_SOURCES = sorted(Path(__file__).parent.glob("*.py"))
_DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:16]

if not numba.config.CACHE_DIR:  # NUMBA_CACHE_DIR
    numba.config.CACHE_DIR = str(ROOT / ".cache" / "kernels" / _DIGEST)
