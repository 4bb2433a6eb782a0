"""A real Triton server with scripted models: endpoints, errors, cancellation, concurrency, hung children."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.serving.server import TritonServer

from .scripted_models import FAIL, HANG
from .support import GrpcStream, http_generate, http_stream

pytestmark = pytest.mark.served


def test_grpc_stream(stream: GrpcStream) -> None:
    answer = stream.ask({"text_input": "count 1", "max_tokens": 3, "stream": True, "return_perf_metrics": True})
    assert answer.error is None and not answer.empty_final
    assert answer.texts == ["11 ", "12 ", "13 ", ""]
    rounds = [json.loads(outputs["spec_decode_round"][0]) for outputs in answer.outputs[:-1]]
    assert [record["index"] for record in rounds] == [0, 1, 2]
    assert [outputs["token_ids"] for outputs in answer.outputs] == [[11], [12], [13], []]
    last = answer.outputs[-1]
    assert last["finish_reason"] == [b"length"]
    assert json.loads(last["spec_decode_stats"][0])["rounds"] == 3
    assert (last["acceptance_rate"], last["total_draft_tokens"]) == ([0.5], [12])
    assert all("finish_reason" not in outputs for outputs in answer.outputs[:-1])


def test_without_stream_there_is_one_response(stream: GrpcStream, served: TritonServer) -> None:
    answer = stream.ask({"text_input": "count 1", "max_tokens": 3})
    assert answer.texts == ["11 12 13 "] and not answer.empty_final
    status, body = http_generate(served.http_address, {"text_input": "count 1", "max_tokens": 3})
    assert status == 200 and body["text_output"] == "11 12 13 " and body["finish_reason"] == "length"


def test_generate_stream(served: TritonServer) -> None:
    body = {"text_input": "count 1", "max_tokens": 3, "stream": True}
    events = list(http_stream(served.http_address, body))
    assert [event["text_output"] for event in events] == ["11 ", "12 ", "13 ", ""]
    assert json.loads(events[-1]["spec_decode_stats"])["finish_reason"] == "length"


def test_generate_refuses_a_stream(served: TritonServer) -> None:
    _, body = http_generate(served.http_address, {"text_input": "count 1", "max_tokens": 3, "stream": True})
    assert "exactly 1 response" in body["error"]  # Triton 24.10 sends it with status 200
    assert http_generate(served.http_address, {"text_input": "count 1"})[0] == 200


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"max_tokens": 0}, "[INVALID_ARGUMENT] max_tokens = 0: must be at least 1"),
        ({"text_input": ""}, "[INVALID_ARGUMENT] text_input = '': must not be empty"),
        ({"min_length": 5, "max_tokens": 4}, "[INVALID_ARGUMENT] min_tokens = 5: must be between 0 and max_tokens = 4"),
        ({"text_input": f"call {FAIL}"}, "[INTERNAL] scripted failure of call"),
    ],
)
def test_errors_over_grpc_and_http(
    stream: GrpcStream, served: TritonServer, inputs: dict[str, Any], message: str
) -> None:
    body = {"text_input": "count 1", **inputs}
    assert message in str(stream.ask(body).error)
    status, answer = http_generate(served.http_address, body)
    assert status >= 400 and message in answer["error"]
    assert stream.ask({"text_input": "count 1", "max_tokens": 1}).texts == ["11 "]
    assert http_generate(served.http_address, {"text_input": "count 1", "max_tokens": 1})[1]["text_output"] == "11 "


def test_nan_temperature(stream: GrpcStream) -> None:
    assert "temperature = nan" in str(stream.ask({"text_input": "count 1", "temperature": float("nan")}).error)


def test_error_after_the_first_chunk_comes_inside_the_stream(stream: GrpcStream, served: TritonServer) -> None:
    body = {"text_input": "fail 2", "max_tokens": 5, "stream": True}
    answer = stream.ask(body)
    assert answer.texts == ["11 ", "12 "] and "scripted failure of the target" in str(answer.error)
    events = list(http_stream(served.http_address, body))
    assert [event["text_output"] for event in events[:2]] == ["11 ", "12 "]
    assert "scripted failure of the target" in events[-1]["error"]


def test_unknown_names_are_refused(stream: GrpcStream, served: TritonServer) -> None:
    body = {"text_input": "count 1", "best_of": 2}
    assert "unexpected inference input 'best_of' for model 'spec_decode'" in str(stream.ask(body).error)
    status, answer = http_generate(served.http_address, body)  # a key that is no input arrives as a parameter
    assert status == 400 and "[INVALID_ARGUMENT] best_of = 2: not supported" in answer["error"]
    answer_ = stream.ask({"text_input": "count 1"}, {"repetition_penalty": "1.5"})  # an input, not a parameter
    assert "repetition_penalty" in str(answer_.error)


def test_prompt_missing_and_request_id_given(served: TritonServer) -> None:
    status, answer = http_generate(served.http_address, {"max_tokens": 1})
    assert status == 400 and "[INVALID_ARGUMENT] text_input = None: must be given" in answer["error"]
    assert http_generate(served.http_address, {"text_input": "count 1", "id": "mine"})[0] == 200


def test_wrong_shape_and_type_are_refused_by_triton(stream: GrpcStream) -> None:
    wrong = stream.ask({"text_input": "count 1", "max_tokens": np.array([1, 2], np.int32)})
    assert "unexpected shape for input 'max_tokens'" in str(wrong.error)
    wrong = stream.ask({"text_input": "count 1", "max_tokens": np.array([1.0], np.float32)})
    assert "data-type" in str(wrong.error)


def test_parameters_reach_the_request(stream: GrpcStream) -> None:
    assert "acceptance_rule" in str(stream.ask({"text_input": "count 1"}, {"acceptance_rule": 3}).error)
    assert stream.ask({"text_input": "count 1"}, {"acceptance_rule": "token", "chat": True}).error is None


def test_cancel_in_mid_stream(served: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    stream = GrpcStream(served.grpc_address)
    stream.send({"text_input": "slow 77", "max_tokens": 1000, "stream": True})
    result, error = stream.events.get(timeout=10)
    assert error is None and result is not None
    stream.close(cancel=True)
    flag = served.log.path.parent.parent / "cancelled-77"
    deadline = time.monotonic() + 10
    while not flag.exists():
        assert time.monotonic() < deadline, "the orchestrator never saw the cancellation"
        time.sleep(0.02)


def test_forty_requests_at_once(served: TritonServer, stream: GrpcStream) -> None:
    """20 on one gRPC stream, 20 over HTTP; none waits for another, none gets another's text."""
    for index in range(20):
        length = 1 + index % 4
        stream.send({"text_input": f"slow {index}", "max_tokens": length, "stream": True}, f"r{index}")

    def over_http(index: int) -> str:
        body = {"text_input": f"slow {index}", "max_tokens": 1 + index % 4}
        return str(http_generate(served.http_address, body)[1]["text_output"])

    with ThreadPoolExecutor(20) as pool:
        texts = list(pool.map(over_http, range(20)))
    answers = stream.answers(20)
    for index in range(20):
        expected = "".join(f"{11 + i} " for i in range(1 + index % 4))
        assert texts[index] == expected
        assert "".join(answers[f"r{index}"].texts) == expected and answers[f"r{index}"].error is None


def test_call_of_a_hung_child_ends_at_its_deadline(stream: GrpcStream) -> None:
    started = time.monotonic()
    assert "[DEADLINE_EXCEEDED] no answer; 1 abandoned" in str(stream.ask({"text_input": f"call {HANG}"}).error)
    assert time.monotonic() - started < 5
    assert stream.ask({"text_input": "call 20"}).texts == ["(21,)"]


def test_stop_ends_a_running_call(stream: GrpcStream) -> None:
    assert stream.ask({"text_input": "stop now"}).texts == ["(7,)"]


def test_drafts_and_logits_between_models(stream: GrpcStream) -> None:
    """K drafts with a law each; the scripted orchestrator checks what comes back, and times it."""
    for drafts in (0, 5):
        answer = stream.ask({"text_input": f"bench {drafts}"})
        assert answer.error is None
        low, median, high = answer.texts[0].split()
        print(f"BLS round trip with {drafts} draft laws: min {low} median {median} p95 {high} us")


def test_batch_of_two_is_refused(served: TritonServer) -> None:
    import tritonclient.http as http

    client = http.InferenceServerClient(served.http_address)
    inputs = []
    values = {"input_ids": [[1, 2], [3, 4]], "input_lengths": [[2], [2]], "request_output_len": [[1], [1]]}
    for name, value in values.items():
        inputs.append(http.InferInput(name, list(np.shape(value)), "INT32"))
        inputs[-1].set_data_from_numpy(np.array(value, np.int32))
    with pytest.raises(Exception, match="batch-size must be <= 1 for 'target'"):
        client.infer("target", inputs)


def test_step_model_over_kserve_speaks_nvidias_tensors(served: TritonServer) -> None:
    import tritonclient.http as http

    client = http.InferenceServerClient(served.http_address)
    inputs = []
    for name, kind, value in (
        ("input_ids", "INT32", np.array([[10, 11]], np.int32)),
        ("input_lengths", "INT32", np.array([[2]], np.int32)),
        ("request_output_len", "INT32", np.array([[3]], np.int32)),
        ("draft_input_ids", "INT32", np.array([[12, 99]], np.int32)),
        ("return_perf_metrics", "BOOL", np.array([[True]])),
    ):
        inputs.append(http.InferInput(name, list(value.shape), kind))
        inputs[-1].set_data_from_numpy(value)
    result = client.infer("target", inputs)
    assert result.as_numpy("output_ids").tolist() == [[[10, 11, 12, 13]]]  # with the input: NVIDIA's default
    assert result.as_numpy("sequence_length").tolist() == [[4]]
    assert result.as_numpy("total_draft_tokens").tolist() == [[2]]
    assert result.as_numpy("total_accepted_draft_tokens").tolist() == [[1]]
    assert result.as_numpy("acceptance_rate").tolist() == [[0.5]]
    assert result.as_numpy("kv_cache_reused_blocks").tolist() == [[2]]


def test_queue_is_bounded(served: TritonServer, stream: GrpcStream) -> None:
    """40 run, 4 wait, the rest is refused at once."""
    for index in range(50):
        stream.send({"text_input": "slow 1", "max_tokens": 20}, f"r{index}")
    refused, done = 0, 0
    for _ in range(50):
        _, error = stream.events.get(timeout=30)
        if error is not None:
            assert "[UNAVAILABLE] 40 requests run and 4 wait" in error.message()
            refused += 1
        else:
            done += 1
    assert (done, refused) == (44, 6)
    assert stream.ask({"text_input": "count 1", "max_tokens": 1}).texts == ["11 "]


def test_metrics_endpoint(served: TritonServer) -> None:
    import urllib.request

    with urllib.request.urlopen(f"http://{served.metrics_address}/metrics", timeout=5) as response:
        assert b'nv_inference_request_success{model="spec_decode"' in response.read()


def test_log_file_exists(served: TritonServer) -> None:
    assert isinstance(served.log.path, Path) and set(served.log.loaded()) == {"target", "draft", "spec_decode"}
