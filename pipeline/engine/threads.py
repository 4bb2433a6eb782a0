"""How OpenMP threads wait. Must be in the environment before torch is imported; imports nothing itself."""

from __future__ import annotations

import os

# Threads of a pass meet hundreds of times. If they sleep at once, waking them costs a tenth of the pass; if they
# spin for long and a third process is busy, they take the core that the others need. About 20 us of spinning.
OPENMP_ENV = {"GOMP_SPINCOUNT": "2000"}


def set_thread_defaults() -> None:
    """Apply the defaults to this process; what the user has set stays."""
    for name, value in OPENMP_ENV.items():
        os.environ.setdefault(name, value)
