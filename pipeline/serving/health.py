"""Whether a model answers: real inferences from a thread of its own, and a look at its process."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

from pipeline.errors import RequestTimeoutError, ServerError
from pipeline.serving.contract import SPEC_DECODE_MODEL
from pipeline.serving.local_http import open_local
from pipeline.serving.stubs import StubProcess

_IDLE_SHARE = 0.05  # of the time waited; less processor time than this is no work
_LATE = f"[{RequestTimeoutError.code}] timeout ="
_OWN_SHARE = 0.25  # of the time waited, after which the orchestrator ends the question by itself
_FAILURES = 2  # answers that are errors, one after another, before a model counts as broken


@dataclass(frozen=True)
class HealthLimits:
    """How a model is asked.

    Attributes:
        period_s: seconds between two questions.
        timeout_s: seconds without an answer, and without work, after which it hangs.
        busy_s: seconds without an answer after which it hangs though it works.
    """

    period_s: float = 2.0
    timeout_s: float = 4.0
    busy_s: float = 120.0


class ModelHealth:
    """Watches one model until it is closed.

    A model under load may take long to answer, and must not be restarted for it: so no answer counts only where its
    process did no work meanwhile, or far beyond any deadline.

    Args:
        address: host:port of Triton's HTTP.
        server_pid: of tritonserver.
        model: its name.
        own_process: it is a model of the Python backend, and loaded.
        limits: of patience.
    """

    def __init__(self, address: str, server_pid: int, model: str, own_process: bool, limits: HealthLimits) -> None:
        self.model = model
        self.stub = StubProcess(server_pid, model)
        self._own_process = own_process
        self._address = address
        self._limits = limits
        self._problem: str | None = None
        self._failures = 0
        self._ending = threading.Event()
        self.stub.find()
        threading.Thread(target=self._run, name=f"health-{model}", daemon=True).start()

    def problem(self) -> str | None:
        """What is wrong with it, or None."""
        gone = self._own_process and (not self.stub.found or self.stub.died)
        return "its process died" if gone else self._problem

    def close(self) -> None:
        """Ask no more; what is being asked is forgotten."""
        self._ending.set()

    def _run(self) -> None:
        answered = time.monotonic()
        while not self._ending.wait(self._limits.period_s):
            asked, worked = time.monotonic(), self.stub.cpu_s
            try:
                probe(self._address, self.model, self._limits.timeout_s)
            except ServerError as error:
                self._failures += 1
                if self._failures >= _FAILURES:
                    self._problem = str(error)
            except TimeoutError:
                waited = time.monotonic() - asked
                # A model without a process of its own cannot be seen to work.
                idle = self.stub.found and self.stub.cpu_s - worked < _IDLE_SHARE * waited
                if idle or time.monotonic() - answered > self._limits.busy_s:
                    self._problem = f"it hangs: no answer in {time.monotonic() - answered:.0f} s"
                continue
            else:
                self._failures = 0
            answered = time.monotonic()


def probe(address: str, model: str, timeout_s: float) -> None:
    """One token of one model: of a step model directly, past every queue of the orchestrator.

    Raises:
        ServerError: it answered with an error; a full queue or a late turn is none, since who says so lives.
        TimeoutError: it did not answer.
    """
    if model == SPEC_DECODE_MODEL:
        # Who has a line of waiting requests, and says so in time, lives.
        own_us = int(_OWN_SHARE * timeout_s * 1e6)
        action, body = "generate", json.dumps({"text_input": "Hello", "max_tokens": 1, "timeout": own_us})
    else:
        names = {"input_ids": 1, "input_lengths": 1, "request_output_len": 1}
        inputs = [{"name": n, "shape": [1, 1], "datatype": "INT32", "data": [value]} for n, value in names.items()]
        action, body = "infer", json.dumps({"inputs": inputs, "outputs": [{"name": "output_ids"}]})
    request = urllib.request.Request(f"http://{address}/v2/models/{model}/{action}", body.encode())
    try:
        with open_local(request, timeout_s) as response:
            text = response.read().decode(errors="replace")
        if "error" not in json.loads(text):
            return
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise TimeoutError(str(error)) from error
    if "[UNAVAILABLE]" not in text and _LATE not in text:
        raise ServerError(f"it answers with an error: {text[:300]}")
