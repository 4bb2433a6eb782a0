"""The environment of a process that computes on a CPU. Read by libraries when a process starts; imports no torch."""

from __future__ import annotations

import os
import sys

COMPUTE_ENV = {
    # Threads of a pass meet hundreds of times. If they sleep at once, waking them costs a tenth of the pass; if
    # they spin for long and a third process is busy, they take the core that the others need. About 20 us.
    "GOMP_SPINCOUNT": "2000",
    # Packed weights in huge pages (glibc 2.35 and later): a pass reads all of them, and misses fewer translations.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def compute_environment() -> dict[str, str]:
    """This process's environment with the defaults added; what the user has set stays."""
    return {**COMPUTE_ENV, **os.environ}


def restart_with_compute_environment() -> None:
    """Replace this process by itself with the defaults in its environment, where they are missing."""
    if any(name not in os.environ for name in COMPUTE_ENV):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], compute_environment())
