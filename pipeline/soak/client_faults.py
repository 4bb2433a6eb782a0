"""Faults of clients: they vanish, ask for nonsense, ask for too much, or all come at once."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from pipeline.client.triton_client import SpecDecodeClient
from pipeline.errors import ServerError, StepError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.serving.contract import SPEC_DECODE_MODEL
from pipeline.soak.answer import Collector, Outcome, difference
from pipeline.soak.client import reset
from pipeline.soak.fault import Damage, Fault
from pipeline.soak.site import Site
from pipeline.spec import ROOT

_WAIT_S = 60.0
_LONG = 400  # tokens: still running when its client is gone
_PROMPT = "Tell a long story about a lighthouse keeper."
_BEYOND = 64  # requests of a burst that find no place
_OVERSIZED_CHARS = 400_000

INVALID: tuple[Mapping[str, Any], ...] = (
    {"text_input": ""},
    {"text_input": "x", "max_tokens": 0},
    {"text_input": "x", "max_tokens": 1_000_000},
    {"text_input": "x", "temperature": -1.0},
    {"text_input": "x", "top_p": 7.0},
    {"text_input": "x", "min_p": 2.0},
    {"text_input": "x", "num_draft_tokens": -1},
    {"text_input": "x", "beam_width": 4},
    {"text_input": "x", "stop_words": [""]},
    {"text_input": "x", "parameters": {"acceptance_rule": "typical"}},
    {"text_input": "x", "parameters": {"no_such_parameter": 1}},
)
OVERSIZED: tuple[Mapping[str, Any], ...] = (
    {"text_input": "x " * (_OVERSIZED_CHARS // 2)},
    {"text_input": "x", "stop_words": ["x" * 5000]},
    {"text_input": "x", "stop_words": [f"w{i}" for i in range(500)]},
    {"text_input": "x", "num_return_sequences": 10_000},
)


class KillGrpcClient(Fault):
    """A process that streams over gRPC is killed in the middle of its answer."""

    name = "kill gRPC client"

    def inject(self, site: Site) -> Damage:
        command = [sys.executable, "-m", "pipeline.client.cli", "request", _PROMPT, "--url", site.grpc]
        command += ["--max-tokens", str(_LONG), "--end-id", "-1"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        with subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as client:
            assert client.stdout is not None
            seen = client.stdout.read(1)
            client.kill()
        return _served(site, "" if seen else "the client got no text to be killed in the middle of")


class DropHttpClient(Fault):
    """A connection that streams over HTTP is reset in the middle of its answer."""

    name = "drop HTTP client"

    def inject(self, site: Site) -> Damage:
        with closing(http.client.HTTPConnection(site.http, timeout=_WAIT_S)) as connection:
            body = {"text_input": _PROMPT, "max_tokens": _LONG, "end_id": -1, "stream": True}
            connection.request("POST", f"/v2/models/{SPEC_DECODE_MODEL}/generate_stream", json.dumps(body))
            stream = connection.sock
            line = connection.getresponse().readline()
            reset(stream)
        return _served(site, "" if line.startswith(b"data: {") else f"the client got {line[:100]!r}")


class Refused(Fault):
    """Requests that must be refused, each with an error that says why."""

    def __init__(self, name: str, bodies: tuple[Mapping[str, Any], ...]) -> None:
        self.name = name
        self._bodies = bodies

    def inject(self, site: Site) -> Damage:
        problems = [problem for body in self._bodies if (problem := _refusal_problem(site, body))]
        return _served(site, "; ".join(problems), f"{len(self._bodies)} requests")


class Burst(Fault):
    """More requests at once than run and wait: the rest is refused, and those that are not are answered right."""

    name = "burst"
    excuses = re.compile(r"\[UNAVAILABLE\]")

    def __init__(self, size: int | None = None) -> None:
        self._size = size

    def inject(self, site: Site) -> Damage:
        limits = site.spec.limits
        size = self._size or limits.max_requests + limits.max_queue + _BEYOND
        started = time.monotonic()
        outcomes = burst(site.grpc, GenerationRequest("One, two,", 2), size)
        seconds = time.monotonic() - started
        right = next((outcome.answer for outcome in outcomes if outcome.end == "whole"), ())
        refused = [outcome for outcome in outcomes if outcome.end == "error" and "[UNAVAILABLE]" in outcome.error]
        others = [outcome for outcome in outcomes if outcome.end != "whole" and outcome not in refused]
        problems = [found for outcome in outcomes if outcome.end == "whole" and (found := difference(right, outcome))]
        problems += [f"{outcome.end}: {outcome.error}" for outcome in others]
        if self._size is None and not refused:
            problems.append(f"none of {size} requests was refused")
        return _served(site, "; ".join(problems[:3]), f"{len(refused)} of {size} refused, {seconds:.1f} s")


def burst(address: str, request: GenerationRequest, size: int) -> list[Outcome]:
    """So many copies of a request at the same time, over one gRPC stream."""
    answers: dict[str, Collector] = {}
    outcomes: list[Outcome] = []
    with SpecDecodeClient(address, _WAIT_S) as client:
        started = time.perf_counter()
        for number in range(size):
            client.send(replace(request, request_id=str(number)))
        while len(outcomes) < size:
            try:
                event = client.next_event(started)
            except StepError as error:
                outcomes.append(Outcome("error", (), str(error)))
                continue
            except ServerError as error:  # silence: whoever has no answer by now hangs
                outcomes += [Outcome("hung", (), str(error))] * (size - len(outcomes))
                break
            found = answers.setdefault(event.request_id, Collector())
            found.add(event.replies)
            if event.final:
                outcomes.append(Outcome("whole", found.answer))
    return outcomes


def _refusal_problem(site: Site, body: Mapping[str, Any]) -> str:
    with closing(http.client.HTTPConnection(site.http, timeout=_WAIT_S)) as connection:
        try:
            connection.request("POST", f"/v2/models/{SPEC_DECODE_MODEL}/generate", json.dumps(body))
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return f"{_shown(body)}: {type(error).__name__} {error}"
    try:
        error_text = str(json.loads(text).get("error", ""))
    except ValueError:
        error_text = ""
    return "" if error_text else f"{_shown(body)}: {response.status} {text[:100]}"


def _served(site: Site, problem: str, note: str = "") -> Damage:
    recovery_s = site.recovery_s(time.monotonic(), _WAIT_S, drafting=False)
    if recovery_s is None and not problem:
        problem = f"no service within {_WAIT_S:g} s"
    return Damage(recovery_s, problem, note)


def _shown(body: Mapping[str, Any]) -> str:
    return json.dumps(body)[:80]
