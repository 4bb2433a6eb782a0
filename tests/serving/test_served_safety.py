"""What a server keeps from its clients: other machines, model control, shared memory, traces and logs."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import tritonclient.grpc as grpc

from pipeline.serving.model_control import ModelControl
from pipeline.serving.server import TritonServer
from pipeline.serving.shared_memory import group_members

from .conftest import stop_and_check
from .support import LOOP, http_generate, make_spec, scripted_server

pytestmark = pytest.mark.served

CONTROL = ModelControl()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """Started with the flags of `specdec serve`."""
    server = scripted_server(tmp_path_factory.mktemp("safety"), make_spec(), LOOP, arguments=CONTROL.flags)
    server.start()
    try:
        server.wait_ready(60)
        yield server
    finally:
        stop_and_check(server)


@pytest.fixture
def client(guarded: TritonServer) -> Iterator[grpc.InferenceServerClient]:
    client = grpc.InferenceServerClient(guarded.grpc_address)
    yield client
    client.close()


def serves(server: TritonServer) -> bool:
    return http_generate(server.http_address, {"text_input": "a", "max_tokens": 3})[1]["text_output"] == "abcd"


def test_everything_listens_on_this_machine_alone(guarded: TritonServer) -> None:
    """The sockets of all its processes, as the kernel has them."""
    assert guarded.pid is not None and serves(guarded)
    listening = [
        connection.laddr
        for process in group_members(guarded.pid)
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    ports = guarded.ports
    # gRPC listens by an IPv6 socket on the same IPv4 address.
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert {address.port for address in listening} == {ports.http, ports.grpc, ports.metrics}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v2/repository/index", {}),
        ("POST", "/v2/repository/models/draft/unload", {}),
        ("POST", "/v2/repository/models/draft/load", {"parameters": {"config": "{}"}}),
        ("GET", "/v2/systemsharedmemory/status", None),
        ("POST", "/v2/systemsharedmemory/region/mine/register", {"key": "/x", "offset": 0, "byte_size": 8}),
        ("POST", "/v2/systemsharedmemory/unregister", {}),
        ("GET", "/v2/cudasharedmemory/status", None),
        ("POST", "/v2/cudasharedmemory/unregister", {}),
        ("GET", "/v2/trace/setting", None),
        ("POST", "/v2/trace/setting", {"trace_file": "stolen.json", "trace_level": ["TENSORS"]}),
        ("POST", "/v2/models/spec_decode/trace/setting", {"trace_level": ["TENSORS"]}),
        ("GET", "/v2/logging", None),
        ("POST", "/v2/logging", {"log_file": "elsewhere.log", "log_verbose_level": 9}),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"specdec-control-key": "guess"}], ids=["no key", "wrong key"])
def test_http_doors_are_closed(
    guarded: TritonServer, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]
) -> None:
    connection = http.client.HTTPConnection(guarded.http_address, timeout=10)
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    assert (response.status, b"restricted" in response.read()) == (403, True)
    connection.close()
    assert serves(guarded)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get_model_repository_index(),
        lambda client: client.unload_model("draft"),
        lambda client: client.load_model("draft"),
        lambda client: client.get_system_shared_memory_status(),
        lambda client: client.register_system_shared_memory("mine", "/x", 8),
        lambda client: client.unregister_system_shared_memory(),
        lambda client: client.get_cuda_shared_memory_status(),
        lambda client: client.unregister_cuda_shared_memory(),
        lambda client: client.get_trace_settings(),
        lambda client: client.update_trace_settings(settings={"trace_level": ["TENSORS"]}),
        lambda client: client.get_log_settings(),
        lambda client: client.update_log_settings({"log_verbose_level": 9}),
    ],
)
def test_grpc_doors_are_closed(
    guarded: TritonServer, client: grpc.InferenceServerClient, call: Callable[[grpc.InferenceServerClient], object]
) -> None:
    with pytest.raises(grpc.InferenceServerException, match="restricted") as refused:
        call(client)
    assert refused.value.status() == "StatusCode.UNAVAILABLE"
    assert serves(guarded)


def test_what_clients_need_is_open(guarded: TritonServer, client: grpc.InferenceServerClient) -> None:
    """Health, metadata, configuration and statistics: perf_analyzer asks for all of them."""
    assert client.is_server_ready() and client.is_model_ready("spec_decode")
    assert client.get_server_metadata().name == "triton"
    assert client.get_model_metadata("spec_decode").name == "spec_decode"
    assert client.get_model_config("spec_decode").config.model_transaction_policy.decoupled
    assert client.get_inference_statistics("target").model_stats[0].name == "target"


def test_there_is_no_door_that_shuts_it_down(guarded: TritonServer) -> None:
    """Nor one that the front ends of other servers would have."""
    for path in ("/v2/shutdown", "/shutdown", "/v2/health/shutdown", "/v2/repository/shutdown"):
        connection = http.client.HTTPConnection(guarded.http_address, timeout=10)
        connection.request("POST", path, b"{}")
        response = connection.getresponse()
        assert response.status in (403, 404, 405), path
        response.read()
        connection.close()
    assert serves(guarded)


def test_the_key_opens_it(guarded: TritonServer) -> None:
    """Or the tests above would pass on a server that has no such doors."""
    CONTROL.reload(guarded.http_address, "draft", 30)
    assert serves(guarded)
