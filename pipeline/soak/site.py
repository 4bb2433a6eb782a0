"""The deployment under soak: where it is, its processes, and whether it serves."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from pipeline.client.serve import running_server
from pipeline.engine.fit import read_engine_manifest
from pipeline.errors import ServerError, SpecError
from pipeline.orchestrator.switch import SWITCH_NAME, Setting, write_setting
from pipeline.serving.contract import DRAFT_MODEL, SPEC_DECODE_MODEL
from pipeline.serving.local_http import open_local
from pipeline.serving.model_control import ModelControl
from pipeline.serving.ports import FREE_PORTS
from pipeline.serving.repository import model_names
from pipeline.serving.server import TritonServer
from pipeline.serving.stubs import StubProcess
from pipeline.serving.supervisor import Supervisor, SupervisorLimits
from pipeline.spec import DeploymentSpec

_LOOK_S = 0.1
_PROBE_S = 5.0
_UNLIMITED = 1_000_000  # repairs: a soak breaks more than a supervisor should ever have to mend
# Text that repeats nothing: the n-gram look-up of a hybrid draft finds no match, and the model is asked.
_PROMPT = "Write the names of five colours, each once:"


@dataclass(frozen=True)
class Site:
    """A deployment that answers.

    Attributes:
        spec: its spec.
        grpc, http, metrics: host:port.
        server: its process, where it was started here; None for one elsewhere, whose processes are left alone.
        said: lines of its supervisor.
    """

    spec: DeploymentSpec
    grpc: str
    http: str
    metrics: str | None
    server: TritonServer | None
    said: list[str]

    def stub(self, model: str) -> StubProcess:
        """The process of a model.

        Raises:
            ServerError: there is none.
        """
        pid = None if self.server is None else self.server.pid
        if pid is None:
            raise ServerError("there is no server here at present")
        stub = StubProcess(pid, model)
        if not stub.find():
            raise ServerError(f"model {model} has no process")
        return stub

    def switch(self, setting: Setting) -> None:
        """Turn the deployment-wide switch."""
        write_setting(self.spec.engines_dir / SWITCH_NAME, setting)

    def serves(self, *, drafting: bool) -> bool:
        """Whether it answers a request, and drafts it if asked for."""
        body = {"text_input": _PROMPT, "max_tokens": 6, "num_draft_tokens": 2 if drafting else 0}
        url = f"http://{self.http}/v2/models/{SPEC_DECODE_MODEL}/generate"
        try:
            request = urllib.request.Request(url, json.dumps(body).encode())
            with open_local(request, _PROBE_S) as response:
                answer = json.loads(response.read())
        except (OSError, ValueError, urllib.error.HTTPError):
            return False
        if "error" in answer:
            return False
        return not drafting or bool(json.loads(answer["spec_decode_stats"])["rounds_by_source"].get("model"))

    def recovery_s(self, since: float, patience_s: float, *, drafting: bool) -> float | None:
        """Seconds from a moment of `time.monotonic` until it serves; None where it does not in time."""
        while time.monotonic() - since < patience_s:
            if self.serves(drafting=drafting):
                return time.monotonic() - since
            time.sleep(_LOOK_S)
        return None


def offered_rules(spec: DeploymentSpec) -> tuple[str, ...]:
    """Acceptance rules of a deterministic target.

    Raises:
        SpecError: its bits depend on its neighbours, so that plain decoding is no reference.
    """
    capabilities = read_engine_manifest(spec, "target").capabilities
    if not capabilities.deterministic:
        raise SpecError(
            f"target of {spec.name}: its manifest says deterministic = false; a soak compares bit for bit and needs a "
            "deterministic engine"
        )
    return capabilities.rules


@contextmanager
def started_site(spec: DeploymentSpec, console: Console) -> Iterator[Site]:
    """Serve a spec on free ports as `specdec serve` does, supervised; stop it at the end.

    Raises:
        ServerError: it cannot start, or its supervisor gave up.
    """
    control = ModelControl()
    with running_server(spec, console, FREE_PORTS, control) as server:
        own_process = {name: spec.engine == "embedded" or name == SPEC_DECODE_MODEL for name in model_names(spec)}
        said: list[str] = []
        supervisor = Supervisor(server, own_process, control, said.append, SupervisorLimits(repairs=_UNLIMITED))
        errors: list[ServerError] = []
        thread = threading.Thread(target=partial(_supervise, supervisor.run, errors), name="supervisor")
        thread.start()
        try:
            yield Site(spec, server.grpc_address, server.http_address, server.metrics_address, server, said)
        finally:
            supervisor.stop()
            thread.join()
    if errors:
        raise errors[0]


def remote_site(spec: DeploymentSpec, grpc: str, http: str, metrics: str | None) -> Site:
    """A deployment that somebody else runs."""
    return Site(spec, grpc, http, metrics, None, [])


def drafts(spec: DeploymentSpec) -> bool:
    """Whether a deployment has a draft model, with a process to kill."""
    return spec.draft.uses_model and DRAFT_MODEL in model_names(spec)


def _supervise(run: Callable[[], None], errors: list[ServerError]) -> None:
    try:
        run()
    except ServerError as error:
        errors.append(error)
