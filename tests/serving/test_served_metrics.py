"""Metrics of a real Triton server under load, read with a Prometheus parser, against what clients were told."""

from __future__ import annotations

import json
import time
import timeit
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pipeline.metrics import catalogue as metrics
from pipeline.metrics.catalogue import METRICS, Metric
from pipeline.metrics.tally import Tally, bounds
from pipeline.orchestrator.recorder import TallyRecorder
from pipeline.orchestrator.statistics import RoundRecord
from pipeline.serving.metrics import PERIOD_S
from pipeline.serving.request_log import ALL, LOG_VARIABLE
from pipeline.serving.server import TritonServer

from .conftest import stop_and_check
from .real_loop import KV, text
from .support import LOOP, GrpcStream, http_generate, make_spec, scripted_server

pytestmark = pytest.mark.served

Sums = dict[tuple[str, frozenset[tuple[str, str]]], float]
SPEC = make_spec(controller={"kind": "fixed", "k": 4}, limits={"max_requests": 16, "max_queue": 64})
REQUESTS = 24


@pytest.fixture(scope="module")
def loop_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    server = scripted_server(tmp_path_factory.mktemp("metrics"), SPEC, LOOP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LOG_VARIABLE, ALL)
        server.start()
    try:
        server.wait_ready(60)
        server.wait_inference(prompt="a", max_tokens=3, num_draft_tokens=1)
        yield server
    finally:
        stop_and_check(server)


def scrape(server: TritonServer) -> dict[str, tuple[str, list[Sample]]]:
    """Ours: name -> (type, samples), as a Prometheus server would read them."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=5) as response:
        body = response.read().decode()
    found: dict[str, tuple[str, list[Sample]]] = {}
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            if sample.name.startswith("spec_decode_"):
                # This parser, unlike a Prometheus server, names a counter _total if it is not.
                name = sample.name if f"# TYPE {sample.name} " in body else sample.name.removesuffix("_total")
                found.setdefault(name, (family.type, []))[1].append(sample)
    return found


def sums(server: TritonServer) -> Sums:
    return {
        (name, frozenset(sample.labels.items())): sample.value
        for name, (_, samples) in scrape(server).items()
        for sample in samples
    }


def quiet(server: TritonServer) -> Sums:
    """Sums when nothing of earlier requests is still to be flushed: unchanged for several flushes."""
    found, since = sums(server), time.monotonic()
    while time.monotonic() < since + 3 * PERIOD_S:
        time.sleep(0.05)
        if (now := sums(server)) != found:
            found, since = now, time.monotonic()
    return found


def eventually(server: TritonServer, agrees: Callable[[Sums], None]) -> Sums:
    """Scrape until the sums agree: metrics are flushed a few times a second, and one scrape may see half a flush."""
    deadline = time.monotonic() + 10
    while True:
        found = sums(server)
        try:
            agrees(found)
            return found
        except (AssertionError, KeyError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def grown(before: Sums, after: Sums, metric: Metric, series: str | None = None) -> dict[tuple[str, ...], float]:
    """By label values: what a counter grew by. Nothing is left out but zeros."""
    name = series or metric.name
    labels = ("le",) if name.endswith("_bucket") else metric.labels
    return {
        tuple(dict(key[1])[label] for label in labels): value - before.get(key, 0.0)
        for key, value in after.items()
        if key[0] == name and value != before.get(key, 0.0)
    }


def ask(server: TritonServer, index: int) -> dict[str, Any]:
    count = 5 + index
    prompt = f"ask {index} m"
    body = {"text_input": prompt, "max_tokens": count}
    if index % 3 == 0:
        body["num_draft_tokens"] = index % 2 * 2  # plain, or K = 2
    status, answer = http_generate(server.http_address, body)
    assert status == 200 and answer["text_output"] == prompt + text("m", count)
    return json.loads(answer["spec_decode_stats"])


def test_names_types_and_labels(loop_server: TritonServer) -> None:
    ask(loop_server, 1)
    quiet(loop_server)
    found = scrape(loop_server)
    expected = {series: metric for metric in METRICS for series in metric.series}
    silent = {metric.name for metric in (metrics.REFUSALS, metrics.FAILURES, metrics.KV_PREEMPTIONS)}  # none happened
    assert set(found) | silent == set(expected) | silent
    for name, (kind, samples) in found.items():
        metric = expected[name]
        assert kind == ("gauge" if metric.kind == "gauge" else "counter"), name
        labels = (*metric.labels, "le") if name.endswith("_bucket") else metric.labels
        assert all(set(sample.labels) == set(labels) for sample in samples), name
        if name.endswith("_bucket"):
            assert {sample.labels["le"] for sample in samples} == set(bounds(metric))


def test_sums_agree_with_the_responses(loop_server: TritonServer) -> None:
    before = quiet(loop_server)
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda index: ask(loop_server, index), range(REQUESTS)))
    committed = sum(stats["committed_tokens"] for stats in told)
    rounds = sum(stats["rounds"] for stats in told)
    sources, reasons, drafted, accepted = Counter(), Counter(), Counter(), Counter()
    for stats in told:
        sources.update(stats["rounds_by_source"])
        reasons.update(stats["decisions"])
        drafted.update({int(k): n for k, n in stats["histogram_by_draft_length"].items()})
        accepted.update(dict(enumerate(stats["acceptance_histogram"])))
    calls = {"target": rounds, "draft": sum(stats["rounds_by_source"].get("model", 0) for stats in told)}
    reused = {(model,): n * KV.reused_blocks for model, n in calls.items()}

    def agrees(after: Sums) -> None:
        def total(metric: Metric) -> float:
            return grown(before, after, metric).get((), 0.0)

        assert total(metrics.COMMITTED_TOKENS) == committed == sum(5 + index for index in range(REQUESTS))
        assert total(metrics.DRAFTS) == sum(stats["spec_rounds"] for stats in told) > 0
        assert total(metrics.DRAFT_TOKENS) == sum(stats["num_draft_tokens"] for stats in told) > 0
        assert total(metrics.ACCEPTED_TOKENS) == sum(stats["num_accepted_draft_tokens"] for stats in told) > 0
        assert total(metrics.PROMPT_TOKENS) == sum(stats["prompt_tokens"] for stats in told)
        # A committed token of a speculative round is an accepted one, or its correction or bonus.
        length = sum(stats["mean_acceptance_length"] * stats["spec_rounds"] for stats in told)
        assert total(metrics.SPEC_COMMITTED_TOKENS) == pytest.approx(length)

        assert grown(before, after, metrics.ROUNDS) == {(source,): n for source, n in sources.items()}
        assert grown(before, after, metrics.DECISIONS) == {(reason,): n for reason, n in reasons.items()}
        at_least = lambda histogram, position: sum(n for k, n in histogram.items() if k > position)  # noqa: E731
        for metric, histogram in ((metrics.DRAFTED_PER_POS, drafted), (metrics.ACCEPTED_PER_POS, accepted)):
            expected = {(str(i),): at_least(histogram, i) for i in range(8) if at_least(histogram, i)}
            assert grown(before, after, metric) == expected
        assert grown(before, after, metrics.ANSWERS) == {("length",): REQUESTS}

        for metric, field in (
            (metrics.DRAFT_S, "draft_s"),
            (metrics.VERIFY_S, "verify_s"),
            (metrics.OVERHEAD_S, "overhead_s"),
        ):
            bucket, seconds, count = metric.series
            assert grown(before, after, metric, count)[()] == rounds
            assert grown(before, after, metric, bucket)["+Inf",] == rounds
            assert grown(before, after, metric, seconds)[()] == pytest.approx(
                sum(stats[field] for stats in told), rel=1e-6
            )
        by_k = grown(before, after, metrics.DRAFT_LENGTH, metrics.DRAFT_LENGTH.series[0])
        below = defaultdict(int)
        for k, n in drafted.items():
            for bound in metrics.DRAFT_LENGTH.buckets:
                below[bound] += n * (k <= bound)
        assert {float(le): n for (le,), n in by_k.items() if le != "+Inf"} == below
        _, seconds, count = metrics.FIRST_TOKEN_S.series
        assert grown(before, after, metrics.FIRST_TOKEN_S, count)[()] == REQUESTS
        waited = grown(before, after, metrics.FIRST_TOKEN_S, seconds)[()] - sum(
            stats["first_token_s"] for stats in told
        )
        assert waited >= 0
        per_token = sum((s["total_s"] - s["first_token_s"]) / (s["committed_tokens"] - 1) for s in told)
        assert grown(before, after, metrics.TOKEN_S, metrics.TOKEN_S.series[1])[()] == pytest.approx(
            per_token, rel=1e-6
        )
        # Every call of a step model has been counted by its own process.
        assert grown(before, after, metrics.KV_REUSED) == reused
        assert after[metrics.KV_BLOCKS.name, frozenset({("model", "draft"), ("state", "free")})] == 60

    eventually(loop_server, agrees)

    # What recording costs, against the rounds of this very run.
    recorder, record = TallyRecorder(Tally()), RoundRecord(1, "model", "fixed", 4, 3, 4)
    cost = min(timeit.repeat(lambda: recorder.round_ended(record), number=200, repeat=20)) / 200
    assert cost < 0.01 * sum(stats["draft_s"] + stats["verify_s"] + stats["overhead_s"] for stats in told) / rounds


def test_refusals_failures_and_cancellations(loop_server: TritonServer) -> None:
    before = quiet(loop_server)
    assert http_generate(loop_server.http_address, {"text_input": "a", "max_tokens": 0})[0] == 400
    stream = GrpcStream(loop_server.grpc_address)
    stream.send({"text_input": "slow", "max_tokens": 1500, "stream": True})
    stream.events.get(timeout=10)
    stream.close(cancel=True)

    def agrees(after: Sums) -> None:
        assert grown(before, after, metrics.CANCELLATIONS) == {(): 1}
        assert grown(before, after, metrics.ANSWERS) == {("cancelled",): 1}
        assert grown(before, after, metrics.REFUSALS) == {("INVALID_ARGUMENT",): 1}
        assert grown(before, after, metrics.FAILURES) == {}
        assert after[metrics.RUNNING.name, frozenset()] == 0 == after[metrics.WAITING.name, frozenset()]

    eventually(loop_server, agrees)


def test_requests_are_logged_with_their_ids(loop_server: TritonServer) -> None:
    """A JSON line each, as the string that Triton's log makes of it."""
    stream = GrpcStream(loop_server.grpc_address)
    stream.send({"text_input": "secret a", "max_tokens": 9}, "mine-1")
    stats = json.loads(stream.answers(1)["mine-1"].outputs[-1]["spec_decode_stats"][0])
    stream.send({"text_input": "secret a", "max_tokens": 0}, "mine-2")
    assert stream.answers(1)[""].error is not None
    stream.close()
    deadline, entries = time.monotonic() + 10, {}
    while len(entries) < 2 and time.monotonic() < deadline:
        for line in loop_server.log.text().splitlines():
            if "mine-" in line:
                entry = json.loads(json.loads(line[line.index("] ") + 2 :]))
                entries[entry["id"]] = entry
    assert entries["mine-1"]["event"] == "answer"
    for name in ("finish_reason", "committed_tokens", "rounds", "num_accepted_draft_tokens"):
        assert entries["mine-1"][name] == stats[name]
    assert entries["mine-2"] == {"event": "error", "id": "mine-2", "code": "INVALID_ARGUMENT", "message": ""}
    assert "secret" not in loop_server.log.text()
