"""Clients that ask at the same time, withdraw at random, and enter every outcome into the ledger."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from pipeline.errors import ServerError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.soak.answer import Answer
from pipeline.soak.client import GrpcClient, HttpClient, SoakClient
from pipeline.soak.ledger import Ledger
from pipeline.soak.requests import vary
from pipeline.soak.site import Site
from pipeline.spec import DeploymentSpec

CANCELLED_SHARE = 0.3  # asked for; some answers end before their client withdraws
_GRACE_S = 10.0
_BACK_OFF_S = 0.5  # of a client whose request failed
_HTTP_SHARE = 0.5
_LATEST_CANCEL = 4  # responses
_LONGEST_WAIT_S = 0.15


@dataclass(frozen=True)
class Case:
    """A request, and what plain decoding answers."""

    request: GenerationRequest
    reference: Answer


class MixedLoad:
    """So many clients in threads of their own, each gRPC or HTTP request by request.

    Args:
        site: the deployment.
        cases: what they ask.
        ledger: takes the outcomes.
        clients: how many.
        seed: of their choices.
    """

    def __init__(self, site: Site, cases: Sequence[Case], ledger: Ledger, clients: int, seed: int) -> None:
        self._site = site
        self._cases = cases
        self._ledger = ledger
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {number}"),), name=f"soak-{number}")
            for number in range(clients)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every client end its request."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self, rng: random.Random) -> None:
        patience = patience_s(self._site.spec)
        with (
            closing(GrpcClient(self._site.grpc, patience)) as grpc,
            closing(HttpClient(self._site.http, patience)) as http,
        ):
            while not self._ending.is_set():
                self._ask(rng, http if rng.random() < _HTTP_SHARE else grpc)

    def _ask(self, rng: random.Random, client: SoakClient) -> None:
        case = rng.choice(self._cases)
        request = vary(case.request, rng, self._site.spec.limits.max_draft_len)
        cancel_after = rng.randint(0, _LATEST_CANCEL if request.stream else 0)
        began = time.monotonic()
        outcome = client.ask(
            request, cancel_after if rng.random() < CANCELLED_SHARE else None, rng.random() * _LONGEST_WAIT_S
        )
        self._ledger.add(request, case.reference, outcome, began, time.monotonic())
        if outcome.end == "error":
            self._ending.wait(_BACK_OFF_S)


def patience_s(spec: DeploymentSpec) -> float:
    """Seconds without a sign of life after which a request hangs: beyond the deployment's own deadlines."""
    return spec.deadlines.target_s + _GRACE_S


def reference_of(client: SoakClient, request: GenerationRequest) -> Answer:
    """Plain decoding's answer, alone on the server.

    Raises:
        ServerError: there is none.
    """
    outcome = client.ask(replace(request, num_draft_tokens=0))
    if outcome.end != "whole":
        raise ServerError(f"no reference: {outcome.error}; {request}")
    return outcome.answer
