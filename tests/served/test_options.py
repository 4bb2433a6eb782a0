"""Every option on the demo pair behind a real Triton: what it does, how it is sent, and what is refused."""

from __future__ import annotations

import json
import queue
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from pipeline.client.triton_client import Reply, SpecDecodeClient
from pipeline.errors import StepError
from pipeline.orchestrator.intake import sequence_seed
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.serving.contract import SPEC_DECODE
from pipeline.serving.server import TritonServer
from pipeline.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.served, pytest.mark.demo]

PROMPT = "The best thing about the sea is"
LENGTH = 12
END_WORD = "<|im_end|>"
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95)
# Penalties that reward: in twelve tokens nothing repeats itself that could be punished.
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "repetition_penalty": {"sampling": SamplingParams(repetition_penalty=0.4)},
    "presence_penalty": {"sampling": SamplingParams(presence_penalty=-5.0)},
    "frequency_penalty": {"sampling": SamplingParams(frequency_penalty=-5.0)},
    "bad_words": {"bad_words": ("the", "is", "that")},
    "embedding_bias": {"embedding_bias": ((" water", 12.0), ("fish", 6.0))},
}


def ask(client: SpecDecodeClient, **fields: Any) -> list[Reply]:
    defaults = {"text_input": PROMPT, "max_tokens": LENGTH, "stream": True, "exclude_input_in_output": True}
    return list(client.generate(GenerationRequest(**{**defaults, **fields})))


def text_of(replies: list[Reply]) -> str:
    return "".join(reply.text for reply in replies)


def ids_of(replies: list[Reply]) -> tuple[int, ...]:
    return tuple(token for reply in replies for token in reply.token_ids)


def http(server: TritonServer, **body: Any) -> tuple[int, dict[str, Any]]:
    """POST to /generate: (status, JSON)."""
    url = f"http://{server.http_address}/v2/models/spec_decode/generate"
    data = json.dumps({"text_input": PROMPT, "max_tokens": LENGTH, **body}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=120) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class Raw:
    """A gRPC stream that sends any input, also what the client would not make."""

    def __init__(self, address: str) -> None:
        self._client = grpcclient.InferenceServerClient(address)
        self._events: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(callback=lambda result, error: self._events.put((result, error)))

    def error(self, **values: Any) -> str:
        """What the server says to these inputs, "" where it answers."""
        inputs = []
        for name, value in {"text_input": PROMPT, "max_tokens": 1, **values}.items():
            spec = SPEC_DECODE.input(name)
            items = [item.encode() if isinstance(item, str) else item for item in np.ravel(value).tolist()]
            shape = [1, *np.shape(value)] if np.ndim(value) > 1 else [1, len(items)]
            tensor = grpcclient.InferInput(name, shape, "BYTES" if spec.kind == "STRING" else spec.kind)
            tensor.set_data_from_numpy(np.array(items, spec.dtype).reshape(shape))
            inputs.append(tensor)
        self._client.async_stream_infer("spec_decode", inputs, enable_empty_final_response=True)
        while True:
            result, error = self._events.get(timeout=60)
            if error is not None:
                return str(error)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return ""

    def close(self) -> None:
        self._client.stop_stream()
        self._client.close()


@pytest.fixture
def raw(demo_server: TritonServer) -> Iterator[Raw]:
    stream = Raw(demo_server.grpc_address)
    yield stream
    stream.close()


@pytest.mark.parametrize("name", OPTIONS)
def test_options_change_greedy_text_and_speculation_does_not(client: SpecDecodeClient, name: str) -> None:
    """With K = 3 and with the controller: the text of plain decoding, and not the text without the option."""
    plain = text_of(ask(client, num_draft_tokens=0, **OPTIONS[name]))
    assert text_of(ask(client, num_draft_tokens=3, **OPTIONS[name])) == plain
    assert text_of(ask(client, **OPTIONS[name])) == plain
    assert (plain != text_of(ask(client, num_draft_tokens=0))) == (name != "none")


def test_bad_words_do_not_occur(client: SpecDecodeClient, tokenizer: Tokenizer) -> None:
    for seed in range(4):
        replies = ask(client, bad_words=("the", "a", "it"), sampling=SAMPLED, seed=seed, max_tokens=24)
        banned = {tokenizer.encode(word)[0] for word in ("the", " the", "a", " a", "it", " it")}
        assert not banned & set(ids_of(replies))


def test_min_tokens_and_a_biased_end(client: SpecDecodeClient) -> None:
    """A bias ends the answer at once; min_tokens says when at the earliest, inside a block or between two."""
    for minimum in range(7):
        for k in (0, 3):
            replies = ask(client, embedding_bias=((END_WORD, 1000.0),), min_tokens=minimum, num_draft_tokens=k)
            assert (len(ids_of(replies)), replies[-1].finish_reason) == (minimum, "eos")


def test_log_probs(client: SpecDecodeClient, demo_server: TritonServer, tokenizer: Tokenizer) -> None:
    """Those of the committed tokens under the target's own law, whatever the options, the rule and K."""
    prompt = tuple(tokenizer.encode(PROMPT))
    for options in ({}, {"sampling": SAMPLED, "seed": 4, "bad_words": ("the",)}):
        replies = ask(client, return_log_probs=True, num_draft_tokens=3, **options)
        values = [value for reply in replies for value in reply.log_probs]
        ids = ids_of(replies)
        assert len(values) == len(ids) == LENGTH
        forced = [
            float(client.next_log_law((*prompt, *ids[:i]), SamplingParams(1.0))[token]) for i, token in enumerate(ids)
        ]
        assert values == pytest.approx(forced, abs=0.02)
        assert replies[-1].cum_log_prob == pytest.approx(sum(values), abs=1e-3)
    status, body = http(demo_server, return_log_probs=True)
    assert status == 200 and len(body["output_log_probs"]) == len(body["token_ids"]) == LENGTH
    assert body["cum_log_probs"] == pytest.approx(sum(body["output_log_probs"]), abs=1e-3)
    assert (body["num_input_tokens"], body["num_output_tokens"]) == (len(prompt), LENGTH)


def test_a_stop_word_and_the_log_probs(client: SpecDecodeClient) -> None:
    """The text is cut before the word; tokens and log-probs include those that spelt it."""
    whole = ask(client, num_draft_tokens=0)
    word = text_of(whole)[8:14]
    replies = ask(client, stop_words=("never", word), return_log_probs=True, num_draft_tokens=3)
    ids = ids_of(replies)
    assert text_of(replies) == text_of(whole)[: text_of(whole).index(word)]
    assert replies[-1].finish_reason == "stop" and ids == ids_of(whole)[: len(ids)]
    assert len([value for reply in replies for value in reply.log_probs]) == len(ids)


def test_a_response_per_token(client: SpecDecodeClient) -> None:
    rounds, each = ask(client, num_draft_tokens=3), ask(client, num_draft_tokens=3, stream_tokens="each")
    assert [len(reply.token_ids) for reply in each] == [1] * LENGTH
    assert text_of(each) == text_of(rounds) and len(rounds) < LENGTH


def test_several_answers(client: SpecDecodeClient, demo_server: TritonServer) -> None:
    """Streamed one after another; in one response without stream; each is what its own seed gives alone."""
    options = {"sampling": SAMPLED, "seed": 21, "num_return_sequences": 3}
    streamed = ask(client, **options)
    texts = [text_of([reply for reply in streamed if reply.sequence_index == i]) for i in range(3)]
    assert len(set(texts)) == 3
    whole = ask(client, stream=False, **options)
    assert [reply.text for reply in whole] == texts
    assert [reply.finish_reason for reply in whole] == ["length"] * 3
    for i, text in enumerate(texts):
        assert text_of(ask(client, sampling=SAMPLED, seed=sequence_seed(21, i))) == text
    status, body = http(demo_server, temperature=0.0, num_return_sequences=2, exclude_input_in_output=True)
    assert status == 200 and len(body["text_output"]) == 2 and len(set(body["text_output"])) == 1


def test_a_seed_alone_decides(client: SpecDecodeClient) -> None:
    """A seeded request gets coupled: one text for every K; another seed, and no seed, another text."""
    texts = {text_of(ask(client, sampling=SAMPLED, seed=9, num_draft_tokens=k)) for k in (0, 1, 4, None)}
    assert len(texts) == 1
    replies = ask(client, sampling=SAMPLED, seed=10)
    assert replies[-1].statistics is not None and replies[-1].statistics["rule"] == "coupled"
    assert {text_of(replies)} != texts
    unseeded = [ask(client, sampling=SAMPLED) for _ in range(2)]
    assert text_of(unseeded[0]) != text_of(unseeded[1])
    assert unseeded[0][-1].statistics is not None and unseeded[0][-1].statistics["rule"] == "block"


@pytest.mark.parametrize("rule", ["block", "token", "match", "coupled"])
def test_every_rule_can_be_named(client: SpecDecodeClient, demo_server: TritonServer, rule: str) -> None:
    replies = ask(client, sampling=SAMPLED, acceptance_rule=rule, num_draft_tokens=3)
    statistics = replies[-1].statistics
    assert statistics is not None and statistics["rule"] == rule and statistics["num_draft_tokens"] > 0
    status, body = http(demo_server, acceptance_rule=rule)
    assert status == 200 and json.loads(body["spec_decode_stats"])["rule"] == rule


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("max_tokens", 0, "must be at least 1"),
        ("max_tokens", 5000, "must not exceed max_seq_len = 2048"),
        ("min_tokens", -1, "must be between 0 and max_tokens"),
        ("min_length", -1, "must be 0 or more"),
        ("temperature", -0.5, "must be a number in [0, 100]"),
        ("temperature", 1000.0, "must be a number in [0, 100]"),
        ("top_k", -1, "must be 0 (off) or a positive number of tokens"),
        ("top_p", 0.0, "must be in (0, 1]; 1.0 is off"),
        ("top_p", 1.5, "must be in (0, 1]; 1.0 is off"),
        ("min_p", 2.0, "must be a number in [0, 1]"),
        ("repetition_penalty", 0.0, "must be a number in [0.01, 100]"),
        ("presence_penalty", 1000.0, "must be a number in [-100, 100]"),
        ("frequency_penalty", -1000.0, "must be a number in [-100, 100]"),
        ("bad_words", "", "each must have 1 to 1024 characters"),
        ("stop_words", "", "each must have 1 to 1024 characters"),
        ("embedding_bias_weights", 1.0, "embedding_bias_words holds 0 words"),
        ("end_id", 49152, "must be -1 (none) or a token id below 49152"),
        ("num_return_sequences", 0, "must be between 1 and 64"),
        ("num_draft_tokens", -1, "must be 0 or more"),
        ("num_draft_tokens", 12, "the target verifies at most 11 draft tokens"),
        ("beam_width", 2, "must be 1: beam search is not offered"),
        ("length_penalty", 3.0, "acts in beam search alone"),
        ("guided_decoding_guide", "{}", "not supported: guided decoding"),
        ("guided_decoding_guide_type", "json", "not supported: guided decoding"),
        ("lora_task_id", 1, "not supported: LoRA adapters"),
        ("prompt_vocab_size", 1, "not supported: prompt tables"),
        ("prompt_table_extra_id", 1, "not supported: prompt tables"),
        ("image_url_input", "http://x/y.png", "not supported: images"),
        ("decoder_text_input", "x", "not supported: encoder-decoder models"),
        ("return_context_logits", True, "logits are not returned"),
    ],
)
def test_bad_input_is_refused_by_name(demo_server: TritonServer, raw: Raw, name: str, value: Any, limit: str) -> None:
    """Over gRPC and HTTP alike: field, value, limit; the next request is served."""
    said = raw.error(**{name: value})
    assert "[INVALID_ARGUMENT]" in said and f"{name} = " in said and limit in said
    status, body = http(demo_server, **{name: value})
    assert status == 400 and f"{name} = " in body["error"] and limit in body["error"]
    assert raw.error() == ""
    assert http(demo_server, max_tokens=1)[0] == 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lora_weights", [[1.0, 2.0]]),
        ("lora_config", [[1, 2, 3]]),
        ("prompt_embedding_table", [[1.0, 2.0]]),
        ("image_bytes_input", [[[[1, 2]]]]),
    ],
)
def test_tensors_of_what_is_not_offered(raw: Raw, name: str, value: Any) -> None:
    said = raw.error(**{name: value})
    assert f"{name} = 'shape [" in said and "not supported: " in said


def test_not_a_number(raw: Raw) -> None:
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        for value in (float("nan"), float("inf")):
            assert f"{name} = {value}" in raw.error(**{name: value})
    assert "embedding_bias_weights = nan" in raw.error(
        embedding_bias_words=["a"], embedding_bias_weights=[float("nan")]
    )
    assert raw.error() == ""


def test_unknown_rules_and_parameters(client: SpecDecodeClient, demo_server: TritonServer) -> None:
    with pytest.raises(StepError, match="acceptance_rule = 'typical': this target offers auto, block, token"):
        ask(client, acceptance_rule="typical")
    status, body = http(demo_server, stream_tokens="none")
    assert status == 400 and "stream_tokens = 'none': must be one of round, each" in body["error"]
    status, body = http(demo_server, best_of=3)
    assert status == 400 and "best_of = 3: not supported; inputs are text_input" in body["error"]
