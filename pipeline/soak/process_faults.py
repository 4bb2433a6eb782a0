"""Faults of the server's own processes, and of the deployment-wide switch."""

from __future__ import annotations

import os
import re
import signal
import time

from pipeline.orchestrator.switch import AUTO, OFF
from pipeline.serving.contract import DRAFT_MODEL, TARGET_MODEL
from pipeline.soak.fault import Damage, Fault
from pipeline.soak.site import Site

RECOVERS_S = 90.0  # longest wait; what is allowed is the report's business
_STALL_S = 2.0  # short of what the supervisor calls hung
_SWITCHED_S = 1.5


class KillModel(Fault):
    """SIGKILL to the process of a step model. Its supervisor loads it again."""

    kills = True

    def __init__(self, model: str) -> None:
        self.name = f"kill {model}"
        self._model = model
        # Without a draft requests go on plainly; without a target they end.
        self.excuses = re.compile(r"model target: ") if model == TARGET_MODEL else None

    def inject(self, site: Site) -> Damage:
        stub = site.stub(self._model)
        killed = time.monotonic()
        stub.kill()
        return _recovered(site, killed, drafting=self._model == DRAFT_MODEL)


class HangDraft(Fault):
    """SIGSTOP to the draft's process, which is left to the supervisor."""

    name = "hang draft"

    def inject(self, site: Site) -> Damage:
        pid = site.stub(DRAFT_MODEL).pid
        assert pid is not None
        hung = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        return _recovered(site, hung, drafting=True)


class StallDraft(Fault):
    """SIGSTOP to the draft's process, and SIGCONT before anybody calls it hung."""

    name = "stall draft"

    def inject(self, site: Site) -> Damage:
        pid = site.stub(DRAFT_MODEL).pid
        assert pid is not None
        stalled = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(_STALL_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        return _recovered(site, stalled, drafting=True)


class TurnSwitch(Fault):
    """Speculation off, at one K, and back to the controllers, under running requests."""

    name = "switch speculation"

    def inject(self, site: Site) -> Damage:
        try:
            for setting in (OFF, 1, AUTO):
                site.switch(setting)
                time.sleep(_SWITCHED_S)
        finally:
            site.switch(AUTO)
        return _recovered(site, time.monotonic(), drafting=False)


def _recovered(site: Site, since: float, *, drafting: bool) -> Damage:
    recovery_s = site.recovery_s(since, RECOVERS_S, drafting=drafting)
    return Damage(recovery_s, "" if recovery_s is not None else f"no service within {RECOVERS_S:g} s")
