"""Every bad request of docs/errors.md, sent over gRPC and HTTP to the demo pair; a good one right after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tritonclient.grpc as grpc

from pipeline.serving.server import TritonServer
from tests.served.error_case import ErrorCase, Refusal
from tests.served.error_table import CASES, DOC, documented, rendered
from tests.served.error_wire import good_text, send_grpc, send_http

pytestmark = [pytest.mark.served, pytest.mark.demo]

GOOD_TEXT = "The best thing about the sea is that it"


@pytest.fixture(scope="module")
def triton(demo_server: TritonServer) -> Iterator[grpc.InferenceServerClient]:
    client = grpc.InferenceServerClient(demo_server.grpc_address)
    yield client
    client.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.group}: {case.what}".replace("`", ""))
def test_refused(demo_server: TritonServer, triton: grpc.InferenceServerClient, case: ErrorCase) -> None:
    if case.grpc is not None:
        check(send_grpc(triton, case.grpc), case.grpc.refusal)
        assert good_text(triton) == GOOD_TEXT
    if case.http is not None:
        check(send_http(demo_server.http_address, case.http), case.http.refusal)
        assert good_text(triton) == GOOD_TEXT


def check(found: tuple[str | int, str], expected: Refusal) -> None:
    status, message = found
    assert (status, expected.says in message) == (expected.status, True), found
    assert len(message) < 2000 and "Traceback" not in message


def test_the_document_is_the_table() -> None:
    """docs/errors.md is made of the cases that were tried; both protocols have more than sixty."""
    assert documented(DOC.read_text()) == rendered()
    assert min(sum(case.grpc is not None for case in CASES), sum(case.http is not None for case in CASES)) > 60
