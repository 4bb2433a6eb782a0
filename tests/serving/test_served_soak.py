"""Mixed load, faults and a planted wrong reference on a served loop of scripted models."""

from __future__ import annotations

import socket
import time
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.orchestrator.request import GenerationRequest
from pipeline.soak.answer import OneAnswer
from pipeline.soak.client import GrpcClient, HttpClient
from pipeline.soak.client_faults import Burst, DropHttpClient, Refused
from pipeline.soak.leaks import holdings, settled
from pipeline.soak.ledger import Ledger
from pipeline.soak.load import Case, MixedLoad, reference_of
from pipeline.soak.schedule import FaultSchedule
from pipeline.soak.site import Site

from .conftest import stop_and_check
from .real_loop import text
from .support import LOOP, make_spec, scripted_server

pytestmark = pytest.mark.served

SPEC = make_spec(limits={"max_requests": 8, "max_queue": 8, "max_draft_len": 4})
ENOUGH_S = 60.0


def test_a_soak_of_scripted_models(tmp_path: Path) -> None:
    """Right answers over gRPC and HTTP, cancelled ones among them; faults that are survived; and a wrong reference
    is noticed."""
    server = scripted_server(tmp_path, SPEC, LOOP)
    server.start()
    try:
        server.wait_ready(60)
        server.wait_inference(prompt="a", max_tokens=3, num_draft_tokens=1)
        site = Site(SPEC, server.grpc_address, server.http_address, server.metrics_address, server, [])
        requests = [GenerationRequest(f"slow {i}", 9 + i, exclude_input_in_output=True) for i in range(5)]
        with closing(GrpcClient(site.grpc, 30)) as client:
            cases = [Case(request, reference_of(client, request)) for request in requests]
        assert [case.reference[0].text for case in cases] == [text(r.text_input, r.max_tokens) for r in requests]
        before = holdings(site)
        ledger = Ledger()
        load = MixedLoad(site, cases, ledger, clients=3, seed=1)
        faults = [DropHttpClient(), Refused("invalid requests", ({"text_input": ""},)), Burst()]
        schedule = FaultSchedule(site, faults, 3.0, ledger, seed=1)
        load.start()
        schedule.start()
        deadline = time.monotonic() + ENOUGH_S
        while (not schedule.done or ledger.requests < 60) and time.monotonic() < deadline:
            time.sleep(0.05)
        schedule.stop()
        load.stop()
        assert ledger.requests >= 60 and ledger.whole > 0 and ledger.cancelled > 0
        assert ledger.wrong == [] and ledger.hung == 0 and ledger.unexcused == []
        assert ledger.broken_faults == [] and ledger.faults == dict.fromkeys((fault.name for fault in faults), 1)
        assert [window.damage.problem for window in ledger.windows] == [""] * 3
        after, _ = settled(lambda: holdings(site), before, 10)
        assert after.requests == {"running": 0, "waiting": 0}
        assert after.shared_memory == before.shared_memory == 3
        _planted(site, cases[0])
    finally:
        stop_and_check(server)


def _planted(site: Site, case: Case) -> None:
    """One letter of the reference is wrong: every answer, whole or not, over both transports, is noticed."""
    reference = case.reference[0]
    wrong = OneAnswer((1, *reference.token_ids[1:]), reference.text, finish_reason=reference.finish_reason)
    ledger = Ledger()
    for kind in (GrpcClient, HttpClient):
        for stream in (False, True):
            request = GenerationRequest(case.request.text_input, 9, stream=stream, exclude_input_in_output=True)
            with closing(kind(site.http if kind is HttpClient else site.grpc, 30)) as client:
                ledger.add(request, (wrong,), client.ask(request), 0.0, 1.0)
                ledger.add(request, case.reference, client.ask(request), 0.0, 1.0)
    assert len(ledger.wrong) == 4 and ledger.whole == 8


def test_a_hung_deployment_is_called_hung(tmp_path: Path) -> None:
    """A port that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        outcome = HttpClient(address, 0.2).ask(GenerationRequest("x", 1))
    assert outcome.end == "hung" and "no response from" in outcome.error
    refused = HttpClient(address, 0.2).ask(GenerationRequest("x", 1))
    assert refused.end == "error" and "the connection broke" in refused.error
