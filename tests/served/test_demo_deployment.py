"""The demo pair, served: texts do not depend on speculation, and every door answers as it should."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from pipeline.client.bench_concurrency import Crowd
from pipeline.client.bench_served import ServedBench
from pipeline.client.demo import TIE
from pipeline.client.prompts import Prompt
from pipeline.client.triton_client import Reply, SpecDecodeClient
from pipeline.errors import StepError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.serving.server import TritonServer
from pipeline.spec import DeploymentSpec
from pipeline.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.served, pytest.mark.demo]

PROMPT = "Extract name and city as JSON from this text: Ada Lovelace lived in London. She wrote the first program."


def ask(client: SpecDecodeClient, **fields: Any) -> tuple[str, Reply]:
    fields = {"text_input": PROMPT, "max_tokens": 32, "stream": True, "chat": True, **fields}
    replies = list(client.generate(GenerationRequest(exclude_input_in_output=True, **fields)))
    return "".join(reply.text for reply in replies), replies[-1]


def http(server: TritonServer, body: dict[str, Any], model: str = "spec_decode", path: str = "generate") -> Any:
    url = f"http://{server.http_address}/v2/models/{model}/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=120) as response:
        text = response.read().decode()
    return json.loads(text) if path == "generate" else text


def test_greedy_text_is_the_same_for_every_k(client: SpecDecodeClient, tokenizer: Tokenizer) -> None:
    """K = 0, 1, 2, 3, 5, 8 and the controller give the text of one direct call of the target.

    The demo is not in deterministic mode, so that another row count may decide a tie: anything but a tie is a fault.
    """
    bench = ServedBench(client, tokenizer, tokenizer.eos_id, 32)
    result = bench.measure(Prompt("json", PROMPT), 0, (0, 1, 2, 3, 5, 8))
    assert result.plain_tokens > 8
    assert all(found.margin < TIE for found in result.divergences), result.divergences
    rounds = bench.rounds(Prompt("json", PROMPT))
    assert sum(one["committed"] for one in rounds) == result.tokens
    assert all(one["accepted"] <= one["drafted"] < 12 and one["seconds"] > 0 and one["reason"] for one in rounds)
    _, last = ask(client, num_draft_tokens=3)
    assert last.statistics is not None
    assert last.statistics["num_draft_tokens"] > last.statistics["num_accepted_draft_tokens"] > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_crowd_is_measured(demo_server: TritonServer, tokenizer: Tokenizer, temperature: float) -> None:
    prompts = [Prompt("chat", f"{number}: {PROMPT}") for number in range(3)]
    with Crowd(demo_server.grpc_address, 3, tokenizer, tokenizer.eos_id, 12) as crowd:
        for order in (0, 1):
            pair = crowd.pair(prompts, temperature, order)
            assert 3 <= pair.plain.tokens <= 36 and 3 <= pair.speculative.tokens <= 36
            assert temperature > 0 or pair.plain.tokens == pair.speculative.tokens
            assert 0 < pair.speculative.first_token_s <= pair.speculative.seconds
            for answer in pair.speculative.answers:
                told = answer.statistics
                assert told is not None and told["num_accepted_draft_tokens"] <= told["num_draft_tokens"]
                assert 0 < answer.first_token_s <= answer.seconds and answer.tokens == told["committed_tokens"]
            assert all(0 < answer.first_token_s <= answer.seconds for answer in pair.plain.answers)


def test_rounds_reuse_the_kv_of_what_is_committed(client: SpecDecodeClient) -> None:
    """Rollback is real: with K = 3 the target computes at most K + 1 tokens a round, and the prompt once."""
    _, last = ask(client, num_draft_tokens=3, text_input=PROMPT + " Answer in one line.")
    statistics = last.statistics
    assert statistics is not None
    assert statistics["target_computed_tokens"] <= statistics["prompt_tokens"] + 4 * statistics["rounds"]
    assert statistics["target_reused_tokens"] >= statistics["prompt_tokens"] * (statistics["rounds"] - 1)


def test_generate_endpoints_and_streaming_agree(demo_server: TritonServer, client: SpecDecodeClient) -> None:
    """gRPC streaming, /generate and /generate_stream give one text; the last response carries the statistics."""
    text, last = ask(client, chat=False)
    whole = http(demo_server, {"text_input": PROMPT, "max_tokens": 32, "exclude_input_in_output": True})
    assert whole["text_output"] == text
    assert whole["finish_reason"] == last.finish_reason
    assert json.loads(whole["spec_decode_stats"])["committed_tokens"] > 0
    with_input = http(demo_server, {"text_input": PROMPT, "max_tokens": 32})
    assert with_input["text_output"] == PROMPT + text
    events = http(demo_server, {"text_input": PROMPT, "max_tokens": 32, "stream": True}, path="generate_stream")
    pieces = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: ")]
    assert len(pieces) > 1
    assert "".join(piece["text_output"] for piece in pieces) == text
    assert "spec_decode_stats" in pieces[-1]


def test_stop_words_and_length(client: SpecDecodeClient) -> None:
    """The text is cut before a stop word, wherever in a block it completes; max_tokens is never exceeded."""
    text, _ = ask(client)
    word = text[len(text) // 2 :][:3]
    cut, last = ask(client, stop_words=("never in the text", word))
    assert cut == text[: text.index(word)]
    assert last.finish_reason == "stop"
    for count in (1, 2, 3, 7):
        _, last = ask(client, max_tokens=count, num_draft_tokens=5)
        assert last.statistics is not None
        assert last.statistics["committed_tokens"] == count
        assert last.finish_reason == "length"


def test_sampled_text_with_a_fixed_k_repeats_with_its_seed(client: SpecDecodeClient) -> None:
    """Same seed and K: the same text; another seed, another text; seeds are drawn where none is given."""
    options = {"sampling": SamplingParams(temperature=0.9, top_p=0.95), "num_draft_tokens": 2}
    first, second, other = (ask(client, seed=seed, **options)[0] for seed in (7, 7, 8))
    assert first == second
    assert first != other
    assert ask(client, **options)[0] != ask(client, **options)[0]


def test_32_requests_at_once(demo_server: TritonServer) -> None:
    """Thirty-two streams with their own lengths and K; each ends with the text that it gets alone."""
    prompts = [f"Write {n} things that are {adjective}." for n in range(2, 10) for adjective in ("red", "big")] * 2
    texts: dict[int, str] = {}

    def run(number: int) -> None:
        with SpecDecodeClient(demo_server.grpc_address, timeout_s=240) as own:
            # 3 tokens: long enough to share passes, too short for a tie that batch shapes could move.
            texts[number], _ = ask(own, text_input=prompts[number], max_tokens=3, num_draft_tokens=number % 4 or None)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert sorted(texts) == list(range(32))
    for number in range(16):
        assert texts[number] == texts[number + 16]


BAD = [
    ({"text_input": ""}, "text_input = ''"),
    ({"text_input": "word " * 3000}, "max_seq_len = 2048"),
    ({"max_tokens": 0}, "max_tokens = 0"),
    ({"max_tokens": 4000}, "max_tokens = 4000"),
    ({"temperature": -1.0}, "temperature = -1.0"),
    ({"top_p": 1.5}, "top_p = 1.5"),
    ({"top_p": 0.0}, "top_p = 0.0"),
    ({"top_k": -1}, "top_k = -1"),
    ({"num_draft_tokens": 99}, "num_draft_tokens = 99"),
    ({"acceptance_rule": "lossy"}, "acceptance_rule = 'lossy'"),
    ({"beam_width": 4}, "beam_width"),
]


@pytest.mark.parametrize(
    ("change", "message"), BAD, ids=[next(iter(change)) + str(i) for i, (change, _) in enumerate(BAD)]
)
def test_bad_input_over_http(demo_server: TritonServer, change: dict[str, Any], message: str) -> None:
    """An error names field, value and limit; the next request is served."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        http(demo_server, {"text_input": PROMPT, "max_tokens": 2, **change})
    assert message in json.loads(caught.value.read())["error"]
    assert http(demo_server, {"text_input": PROMPT, "max_tokens": 1})["text_output"]


def test_bad_input_over_grpc(client: SpecDecodeClient) -> None:
    """The same over gRPC, for what the client library lets through."""
    for fields, message in (
        ({"max_tokens": 4000}, "max_tokens = 4000"),
        ({"num_draft_tokens": 99}, "num_draft_tokens = 99"),
        ({"acceptance_rule": "lossy"}, "acceptance_rule = 'lossy'"),
        ({"text_input": "word " * 3000}, "max_seq_len"),
    ):
        with pytest.raises(StepError, match="INVALID_ARGUMENT") as caught:
            ask(client, **fields)
        assert message in str(caught.value)
        assert ask(client, max_tokens=1)[0]


def test_unknown_model(demo_server: TritonServer) -> None:
    """A model that is not served is refused by name."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        http(demo_server, {"text_input": "x"}, model="no_such_model")
    assert "no_such_model" in caught.value.read().decode()


def test_cancelled_requests_free_their_places(demo_server: TritonServer, demo_spec: DeploymentSpec) -> None:
    """More clients than there are places leave in the middle of 400 tokens; whoever comes next is served soon."""
    for number in range(demo_spec.limits.max_requests + 4):
        with SpecDecodeClient(demo_server.grpc_address, timeout_s=60) as leaving:
            request = GenerationRequest(f"Count from {number} to three hundred:", 400, stream=True)
            next(leaving.generate(request))
            leaving.close(cancel=True)
    with SpecDecodeClient(demo_server.grpc_address, timeout_s=20) as client:
        assert ask(client, max_tokens=4)[0]
