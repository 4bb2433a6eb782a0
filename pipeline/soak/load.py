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

CANCELLED_SHARE = 0.2  # asked for; some answers end before their client withdraws
PATIENCE_S = 60.0
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
        grpc, http: host:port.
        cases: what they ask.
        largest_k: draft tokens that a request may ask for.
        ledger: takes the outcomes.
        clients: how many.
        seed: of their choices.
    """

    def __init__(
        self, grpc: str, http: str, cases: Sequence[Case], largest_k: int, ledger: Ledger, clients: int, seed: int
    ) -> None:
        self._grpc, self._http = grpc, http
        self._cases = cases
        self._largest_k = largest_k
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
        with closing(GrpcClient(self._grpc, PATIENCE_S)) as grpc, closing(HttpClient(self._http, PATIENCE_S)) as http:
            while not self._ending.is_set():
                self._ask(rng, http if rng.random() < _HTTP_SHARE else grpc)

    def _ask(self, rng: random.Random, client: SoakClient) -> None:
        case = rng.choice(self._cases)
        request = vary(case.request, rng, self._largest_k)
        cancel_after = rng.randint(0, _LATEST_CANCEL if request.stream else 0)
        began = time.monotonic()
        outcome = client.ask(
            request, cancel_after if rng.random() < CANCELLED_SHARE else None, rng.random() * _LONGEST_WAIT_S
        )
        self._ledger.add(request, case.reference, outcome, began, time.monotonic())
        if outcome.end == "error":
            self._ending.wait(_BACK_OFF_S)


def reference_of(client: SoakClient, request: GenerationRequest) -> Answer:
    """Plain decoding's answer, alone on the server.

    Raises:
        ServerError: there is none.
    """
    outcome = client.ask(replace(request, num_draft_tokens=0))
    if outcome.end != "whole":
        raise ServerError(f"no reference: {outcome.error}; {request}")
    return outcome.answer
