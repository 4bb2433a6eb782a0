"""Random requests: reproducible, different, of every kind, and with a text that is known beforehand."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from pipeline.client.prompts import load_prompts
from pipeline.orchestrator.request import GenerationRequest
from pipeline.soak.client import http_body, http_replies
from pipeline.soak.requests import make_requests, vary

REQUESTS = make_requests(300, load_prompts(), ("block", "token", "match", "coupled"), 7)


def test_the_same_seed_makes_the_same_requests() -> None:
    assert make_requests(300, load_prompts(), ("block", "token", "match", "coupled"), 7) == REQUESTS
    assert len({repr(request) for request in REQUESTS}) == 300


def test_every_option_is_used_and_no_text_is_left_to_chance() -> None:
    for name in ("stop_words", "bad_words", "embedding_bias", "min_tokens", "return_log_probs", "chat", "end_id"):
        assert len({getattr(request, name) for request in REQUESTS}) > 1, name
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"):
        assert len({getattr(request.sampling, name) for request in REQUESTS}) > 2, name
    for request in REQUESTS:
        assert request.sampling.greedy or (request.acceptance_rule == "coupled" and request.seed is not None)


def test_without_coupled_all_is_greedy() -> None:
    assert all(request.sampling.greedy for request in make_requests(100, load_prompts(), ("token",), 1))


def test_variations_leave_the_text_alone() -> None:
    rng = random.Random(0)
    ways = [vary(REQUESTS[0], rng, 5) for _ in range(200)]
    plain = {"stream": False, "stream_tokens": "round", "return_perf_metrics": False, "num_draft_tokens": None}
    assert {repr(replace(way, **plain)) for way in ways} == {repr(replace(REQUESTS[0], **plain))}
    assert {way.num_draft_tokens for way in ways} == {None, 0, 1, 2, 3, 4, 5}
    assert {way.stream for way in ways} == {True, False}


def test_http_body_and_answers() -> None:
    request = GenerationRequest("x", 4, seed=3, stop_words=("a", "b"), acceptance_rule="coupled")
    body = json.loads(http_body(request))
    assert body["text_input"] == "x" and body["stop_words"] == ["a", "b"] and body["seed"] == 3
    assert body["parameters"] == {"acceptance_rule": "coupled"}
    two = {
        "text_output": ["ab", "c"],
        "token_ids": [5, 6, 7, -1],
        "output_log_probs": [-0.1, -0.2, -0.3, 0.0],
        "finish_reason": ["length", "eos"],
    }
    found = http_replies(two)
    assert [(reply.sequence_index, reply.token_ids, reply.finish_reason) for reply in found] == [
        (0, (5, 6), "length"),
        (1, (7,), "eos"),
    ]
    assert len(found[1].log_probs) == 1
    piece = http_replies({"text_output": "ab", "token_ids": [5, 6], "sequence_index": 2, "finish_reason": ""})
    assert [(reply.sequence_index, reply.token_ids, reply.finish_reason) for reply in piece] == [(2, (5, 6), None)]
