"""One way in which things go wrong on purpose."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

from pipeline.soak.site import Site


@dataclass(frozen=True)
class Damage:
    """What a fault did, seen by whoever injected it.

    Attributes:
        recovery_s: from the fault until the deployment served as before; None where it did not in time.
        problem: what was not as it must be; "" where all was well.
        note: for people.
    """

    recovery_s: float | None
    problem: str = ""
    note: str = ""


class Fault(ABC):
    """A kind of fault.

    Attributes:
        name: for people and reports.
        kills: a process dies: recovery must be quick.
        excuses: errors that requests may be answered with meanwhile; None: no request may fail.
    """

    name: str
    kills: bool = False
    excuses: re.Pattern[str] | None = None

    @abstractmethod
    def inject(self, site: Site) -> Damage:
        """Do it, and wait until the deployment serves again.

        Raises:
            SpecDecodeError: it could not be done.
        """


@dataclass(frozen=True)
class Window:
    """A fault that was injected; moments of `time.monotonic`.

    Attributes:
        restarted: the supervisor started the whole server again meanwhile.
    """

    fault: Fault
    began: float
    ended: float
    damage: Damage
    restarted: bool = False
