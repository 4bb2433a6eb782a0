"""Injects faults one after another, evenly over a soak."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from pipeline.errors import InvalidRequestError, SpecDecodeError
from pipeline.serving.contract import DRAFT_MODEL, TARGET_MODEL
from pipeline.soak.client_faults import INVALID, OVERSIZED, Burst, DropHttpClient, KillGrpcClient, Refused
from pipeline.soak.fault import Fault, Window
from pipeline.soak.ledger import Ledger
from pipeline.soak.process_faults import HangDraft, KillModel, StallDraft, TurnSwitch
from pipeline.soak.site import Site, drafts

PER_KIND_S = 25.0  # what one fault takes with its recovery, at most, on a busy machine
_LEAD_S = 2.0


def all_faults(site: Site) -> list[Fault]:
    """Every kind that this deployment can be given: processes of another machine cannot be killed from here."""
    found: list[Fault] = [
        KillGrpcClient(),
        DropHttpClient(),
        Refused("invalid requests", INVALID),
        Refused("oversized requests", OVERSIZED),
        Burst(),
    ]
    if site.server is not None:
        found += [TurnSwitch()]
        if site.spec.engine == "embedded":  # models of their own processes
            found += [KillModel(TARGET_MODEL)]
            found += [KillModel(DRAFT_MODEL), HangDraft()] if drafts(site.spec) else []
    return found


def chosen_faults(site: Site, names: str | None) -> list[Fault]:
    """Those of the names between commas; None: all, "": none.

    Raises:
        InvalidRequestError: there is no such kind, or not for this deployment.
    """
    usual = all_faults(site)
    offered = {fault.name: fault for fault in usual}
    if any(isinstance(fault, HangDraft) for fault in usual):
        # On demand alone: Triton's Python backend may not survive it (docs/operations.md).
        offered[StallDraft.name] = StallDraft()
    wanted = (
        [fault.name for fault in usual]
        if names is None
        else [name.strip() for name in names.split(",") if name.strip()]
    )
    for name in wanted:
        if name not in offered:
            raise InvalidRequestError("faults", name, f"must be among {', '.join(offered)}")
    return [offered[name] for name in wanted]


def rounds_of(faults: Sequence[Fault], seconds: float) -> int:
    """How often each kind is injected in a soak of so many seconds: once at least."""
    return max(1, int(seconds / (PER_KIND_S * len(faults)))) if faults else 0


class FaultSchedule:
    """A thread that injects every kind so many times, in random order, evenly over the time.

    Args:
        site: the victim.
        faults: the kinds.
        seconds: of the soak.
        ledger: takes what happened.
        seed: of the order.
    """

    def __init__(self, site: Site, faults: Sequence[Fault], seconds: float, ledger: Ledger, seed: int) -> None:
        self._site = site
        self._ledger = ledger
        self._seconds = seconds
        rng = random.Random(seed)
        self._plan: list[Fault] = []
        for _ in range(rounds_of(faults, seconds)):
            self._plan += rng.sample(list(faults), len(faults))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults")
        self.doing = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Inject no more; the fault that is going on ends."""
        self._ending.set()
        self._thread.join()

    @property
    def done(self) -> bool:
        """Whether every fault has been injected."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        started = time.monotonic()
        for number, fault in enumerate(self._plan):
            due = started + _LEAD_S + (self._seconds - _LEAD_S) * number / len(self._plan)
            if self._ending.wait(max(0.0, due - time.monotonic())):
                return
            self.doing = fault.name
            server = self._site.server
            began, pid = time.monotonic(), server.pid if server is not None else None
            try:
                damage = fault.inject(self._site)
            except (SpecDecodeError, OSError) as error:
                self._ledger.add_broken_fault(fault, str(error))
            else:
                restarted = server is not None and server.pid != pid
                self._ledger.add_window(Window(fault, began, time.monotonic(), damage, restarted))
            self.doing = ""
