"""Random prompts, words and JSON against the demo pair: no crash, no hang, and nobody gets another's text."""

from __future__ import annotations

import http.client
import json
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tritonclient.grpc as grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.serving.contract import SPEC_DECODE
from pipeline.serving.server import TritonServer
from tests.served.error_case import GENERATE, Http, Refusal, tensors
from tests.served.error_wire import grpc_input, send_http
from tests.served.test_served_errors import GOOD_TEXT

pytestmark = [pytest.mark.served, pytest.mark.demo]

FUZZ = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,  # a fixed seed
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ANSWER_S = 30.0
STREAM = f"{GENERATE}_stream"
# JSON has no lone surrogates; everything else is text.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6), max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([spec.name for spec in SPEC_DECODE.inputs]) | st.sampled_from(
    ["acceptance_rule", "stream_tokens", "chat", "id", "parameters", "priority", "timeout", "sequence_id"]
)
FIXED = ("text_input", "max_tokens", "num_return_sequences")
MARKERS = iter(range(1_000_000))


def marker() -> str:
    """A word that no other request holds."""
    return f"secret{next(MARKERS):06d}xyz"


@pytest.fixture
def alive(demo_server: TritonServer) -> Iterator[None]:
    """The server that was there before is there after, and answers right."""
    pid = demo_server.pid
    yield
    assert demo_server.running and demo_server.pid == pid
    assert text_of(demo_server, {"text_input": "The best thing about the sea is", "max_tokens": 2}) == GOOD_TEXT


def post(server: TritonServer, path: str, body: bytes) -> tuple[int, str]:
    return send_http(server.http_address, Http(Refusal(0, ""), body, path))


def text_of(server: TritonServer, body: dict[str, Any]) -> str:
    status, answer = post(server, GENERATE, json.dumps(body).encode())
    assert status == 200, answer
    return str(json.loads(answer)["text_output"])


def events(answer: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: ")]


@FUZZ
@given(prompt=TEXT, stop=WORDS, bad=WORDS, chat=st.booleans())
def test_prompts_and_words(
    demo_server: TritonServer, alive: None, prompt: str, stop: list[str], bad: list[str], chat: bool
) -> None:
    """Any text is answered, streamed as whole, and ends before its stop words; or it is refused by name."""
    body: dict[str, Any] = {"text_input": prompt, "max_tokens": 4, "exclude_input_in_output": True, "chat": chat}
    # Triton takes an empty list for no input at all, and an empty input for a mistake.
    body |= {name: words for name, words in (("stop_words", stop), ("bad_words", bad)) if words}
    status, whole = post(demo_server, GENERATE, json.dumps(body).encode())
    if status != 200:
        assert status == 400 and "[INVALID_ARGUMENT] " in whole, (status, whole)
        return
    text = json.loads(whole)["text_output"]
    assert not any(word in text for word in stop)
    _, streamed = post(demo_server, STREAM, json.dumps({**body, "stream": True}).encode())
    assert "".join(event["text_output"] for event in events(streamed)) == text


@FUZZ
@given(changes=st.dictionaries(NAMES, JSON, max_size=4), path=st.sampled_from([GENERATE, STREAM]))
def test_json_bodies(demo_server: TritonServer, alive: None, changes: dict[str, Any], path: str) -> None:
    """Known names with values of every kind: an answer or one clear error, never a fault of the server's own."""
    body = {"text_input": "sea", "max_tokens": 2, **changes}
    status, answer = post(demo_server, path, json.dumps(body).encode())
    assert status in (200, 400, 500)
    assert "[INTERNAL]" not in answer and "Traceback" not in answer and "not healthy" not in answer, answer
    for part in events(answer) if path == STREAM and status == 200 else [json.loads(answer)]:
        assert "text_output" in part or part["error"]


@FUZZ
@given(body=st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()))
def test_bytes_as_bodies(demo_server: TritonServer, alive: None, body: bytes) -> None:
    status, answer = post(demo_server, GENERATE, body)
    assert status in (400, 500) and json.loads(answer)["error"]


@FUZZ
@given(
    prompt=st.binary(max_size=30),
    inputs=st.dictionaries(
        st.sampled_from([spec.name for spec in SPEC_DECODE.inputs if spec.name not in FIXED]),
        st.integers(-(2**31), 2**31 - 1) | st.floats(width=32) | st.booleans() | st.binary(max_size=8),
        max_size=3,
    ),
)
def test_grpc_inputs(demo_server: TritonServer, alive: None, prompt: bytes, inputs: dict[str, Any]) -> None:
    """Any bytes as prompt, any type for any input, over a stream that lives on."""
    found: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client = grpc.InferenceServerClient(demo_server.grpc_address)
    client.start_stream(callback=lambda result, error: found.put((result, error)))
    try:
        for values in ({"text_input": prompt, **inputs}, {}):
            client.async_stream_infer("spec_decode", [grpc_input(*item) for item in tensors(values).items()])
            result, error = found.get(timeout=ANSWER_S)
            while error is None and result.as_numpy("finish_reason") is None:
                result, error = found.get(timeout=ANSWER_S)
            said = "" if error is None else str(error)
            assert "[INTERNAL]" not in said and "Traceback" not in said, said
        assert error is None and result.as_numpy("text_output").reshape(-1)[0].decode() == GOOD_TEXT
    finally:
        client.stop_stream()
        client.close()


def test_an_answer_never_holds_anothers_text(demo_server: TritonServer, alive: None) -> None:
    """Distinct words in 96 prompts, 16 at a time, whole, streamed, refused and abandoned: all see their own alone."""
    secrets = [marker() for _ in range(96)]
    abandoned = threading.Event()

    def ask(index: int) -> str:
        mine = secrets[index]
        body: dict[str, Any] = {"text_input": f"Repeat: {mine}, {mine}, {mine},", "max_tokens": 12, "id": mine}
        kind = index % 4
        if kind == 1:
            streamed = post(demo_server, STREAM, json.dumps({**body, "stream": True}).encode())[1]
            return "".join(event["text_output"] for event in events(streamed))
        if kind == 2:  # refused, with its own word in the message
            return post(demo_server, GENERATE, json.dumps({**body, "acceptance_rule": mine}).encode())[1]
        if kind == 3:
            connection = http.client.HTTPConnection(demo_server.http_address, timeout=ANSWER_S)
            connection.request("POST", STREAM, json.dumps({**body, "stream": True}).encode())
            first = connection.getresponse().readline().decode()
            connection.close()
            abandoned.set()
            return first
        return post(demo_server, GENERATE, json.dumps(body).encode())[1]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(len(secrets))))
    assert abandoned.is_set()
    held = [sum(secret in answer for secret in secrets) for answer in answers]
    for index, (mine, answer) in enumerate(zip(secrets, answers, strict=True)):
        assert [secret for secret in secrets if secret in answer and secret != mine] == []
        assert mine in answer or index % 4 in (1, 3), answer
    assert sum(held) > 60  # they are repeated: a text of another's would have been seen
