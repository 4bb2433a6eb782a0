"""A supervised server whose processes are killed or hang: texts stay right, service comes back, nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.errors import ServerError
from pipeline.serving.health import HealthLimits
from pipeline.serving.model_control import ModelControl
from pipeline.serving.server import TritonServer
from pipeline.serving.shared_memory import group_members, regions
from pipeline.serving.stubs import StubProcess
from pipeline.serving.supervisor import OLD_LOG_SUFFIX, Supervisor, SupervisorLimits

from .conftest import stop_and_check
from .real_loop import HANG_FLAG, text
from .support import LOOP, Answer, GrpcStream, http_generate, make_spec, scripted_server

pytestmark = pytest.mark.served

MODELS = dict.fromkeys(("target", "draft", "spec_decode"), True)
RECOVERY_S = 10.0
LENGTH = 200  # tokens of a request that is under way when something dies: seconds
# Deadlines far above the bound: what is noticed in time was not noticed by them.
SPEC = make_spec(controller={"kind": "fixed", "k": 4}, deadlines={"target_s": 60, "draft_s": 60})


@dataclass
class Supervised:
    """A server, and its supervisor in a thread."""

    server: TritonServer
    folder: Path
    said: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)

    def start(self, limits: SupervisorLimits) -> None:
        control = ModelControl()
        object.__setattr__(self.server._options, "arguments", control.flags)
        self.server.start()
        self.server.wait_ready(60)
        self.server.wait_inference(prompt="a", max_tokens=3, num_draft_tokens=1)
        self.supervisor = Supervisor(self.server, MODELS, control, self.said.append, limits)
        self.error: ServerError | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.pids.append(self.pid)

    def _run(self) -> None:
        try:
            self.supervisor.run()
        except ServerError as error:
            self.error = error

    @property
    def pid(self) -> int:
        assert self.server.pid is not None
        return self.server.pid

    def stub(self, model: str) -> StubProcess:
        stub = StubProcess(self.pid, model)
        assert stub.find()
        return stub

    def begin(self, count: int) -> GrpcStream:
        """Requests that are being answered."""
        stream = GrpcStream(self.server.grpc_address)
        for index in range(count):
            stream.send({"text_input": f"slow {index}", "max_tokens": LENGTH, "stream": True}, str(index))
        started: set[str] = set()
        seen = []
        while len(started) < count:
            result, error = stream.events.get(timeout=20)
            assert error is None
            seen.append((result, error))
            started.add(result.get_response().id)
        for event in seen:
            stream.events.put(event)
        return stream

    def ask(self) -> dict[str, Any] | None:
        """Statistics of a request that drafts; None where it failed."""
        try:
            body = {"text_input": "x", "max_tokens": 20, "num_draft_tokens": 3}
            status, answer = http_generate(self.server.http_address, body, timeout_s=5)
        except OSError:
            return None
        if status != 200 or "error" in answer:
            return None
        assert answer["text_output"] == "x" + text("x", 20)
        stats: dict[str, Any] = json.loads(answer["spec_decode_stats"])
        return stats

    def recovery_s(self, since: float, *, drafting: bool = True) -> float:
        """Seconds until requests are served (and drafted) again."""
        while time.monotonic() - since < 4 * RECOVERY_S:
            stats = self.ask()
            if stats is not None and (not drafting or stats["rounds_by_source"].get("model")):
                return time.monotonic() - since
            time.sleep(0.1)
        pytest.fail(f"no service; the supervisor said {self.said}")

    def end(self) -> None:
        self.supervisor.stop()
        self.thread.join(30)
        stop_and_check(self.server)
        assert not self.thread.is_alive()
        for pid in self.pids:
            assert group_members(pid) == [] and regions(pid) == []


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    """Started by the test."""
    found = Supervised(scripted_server(tmp_path, SPEC, LOOP), tmp_path)
    yield found
    found.end()


def whole(answers: dict[str, Answer]) -> dict[str, str]:
    return {name: "".join(answer.texts) for name, answer in answers.items()}


def test_a_process_is_told_from_the_one_before() -> None:
    """When a process can have taken its first call, by the kernel's clock."""
    before = time.monotonic()
    child = subprocess.Popen(["sleep", "60"])
    try:
        stub = StubProcess(os.getpid(), "sleep")
        assert not stub.find() and stub.serves_since == float("inf")
        stub._process = psutil.Process(child.pid)
        assert before + 0.05 < stub.serves_since < time.monotonic() + 0.15
    finally:
        child.kill()
        child.wait()
    assert stub.died and stub.cpu_s == 0.0


def test_draft_killed_under_running_requests(supervised: Supervised) -> None:
    """They go on plainly with the same text; the draft is loaded again, and drafts."""
    supervised.start(SupervisorLimits())
    stream = supervised.begin(4)
    killed = time.monotonic()
    supervised.stub("draft").kill()
    recovery = supervised.recovery_s(killed)
    answers = stream.answers(4)
    stream.close()
    assert whole(answers) == {str(i): text(f"slow {i}", LENGTH) for i in range(4)}
    stats = [json.loads(answer.outputs[-1]["spec_decode_stats"][0]) for answer in answers.values()]
    assert sum(entry["draft_failures"] for entry in stats) >= 1
    assert recovery < RECOVERY_S
    assert supervised.server.pid == supervised.pids[0], "the server was restarted for a draft"
    assert len(supervised.said) == 2 and "model draft: its process died" in supervised.said[0], supervised.said


def test_target_killed_under_running_requests(supervised: Supervised) -> None:
    """They fail with an error that says so; it is loaded again, and the server answers."""
    supervised.start(SupervisorLimits())
    stream = supervised.begin(1)
    killed = time.monotonic()
    supervised.stub("target").kill()
    error = stream.answers(1)[""].error
    noticed = time.monotonic() - killed
    # Triton may notice before the orchestrator does.
    assert error is not None and re.search("model target: (its process died|Stub process .* is not healthy)", error)
    assert noticed < 3
    assert supervised.recovery_s(killed) < RECOVERY_S, supervised.said
    stream.close()
    assert supervised.server.pid == supervised.pids[0], supervised.said


@pytest.mark.parametrize("model", ["spec_decode", "tritonserver"])
def test_server_process_killed(supervised: Supervised, model: str) -> None:
    """The server is started again on the same ports, and the log of the old one is kept."""
    supervised.start(SupervisorLimits())
    ports = supervised.server.ports
    killed = time.monotonic()
    if model == "tritonserver":
        os.kill(supervised.pid, signal.SIGKILL)
    else:
        supervised.stub(model).kill()
    assert supervised.recovery_s(killed) < 2 * RECOVERY_S, supervised.said  # three processes import at once
    assert supervised.server.ports == ports and supervised.pid != supervised.pids[0], supervised.said
    assert Path(f"{supervised.server.log.path}{OLD_LOG_SUFFIX}").stat().st_size > 0


@pytest.mark.parametrize("model", ["draft", "target"])
def test_hanging_step_model(supervised: Supervised, model: str) -> None:
    """Alive, at rest and without an answer: real inferences find it."""
    supervised.start(SupervisorLimits(health=HealthLimits(period_s=0.2, timeout_s=1.5)))
    hung = time.monotonic()
    (supervised.folder / "engines" / model / HANG_FLAG).touch()
    while not supervised.said and time.monotonic() - hung < RECOVERY_S:
        time.sleep(0.1)
    assert f"model {model}: it hangs" in supervised.said[0]
    assert supervised.recovery_s(hung) < 2 * RECOVERY_S
    assert supervised.pid == supervised.pids[0], supervised.said


def test_busy_is_not_hung_and_a_full_queue_is_not_broken(supervised: Supervised) -> None:
    """Requests under way for longer than the patience of the health checks, and no repair."""
    supervised.start(SupervisorLimits(health=HealthLimits(period_s=0.1, timeout_s=0.5)))
    stream = supervised.begin(16)
    assert whole(stream.answers(16, 60)) == {str(i): text(f"slow {i}", LENGTH) for i in range(16)}
    stream.close()
    assert supervised.said == [] and supervised.error is None


def test_it_gives_up_on_what_fails_again_and_again(supervised: Supervised) -> None:
    supervised.start(SupervisorLimits(repairs=1))
    supervised.stub("target").kill()
    supervised.recovery_s(time.monotonic(), drafting=False)
    supervised.pids.append(supervised.pid)
    supervised.stub("target").kill()
    supervised.thread.join(20)
    assert supervised.error is not None and "repaired 1 times in 600 s, which is the limit" in str(supervised.error)


def test_asked_to_stop_it_does_not_come_back(supervised: Supervised) -> None:
    """As `specdec stop` does, with a request under way, for which Triton exits with an error."""
    supervised.start(SupervisorLimits())
    stream = supervised.begin(1)
    os.kill(supervised.pid, signal.SIGINT)
    supervised.thread.join(30)
    assert not supervised.thread.is_alive() and supervised.error is None and supervised.said == []
    stream.close()


def test_model_control_is_closed_to_clients(supervised: Supervised) -> None:
    supervised.start(SupervisorLimits())
    with pytest.raises(ServerError, match=r"unload of model draft was refused: .*restricted"):
        ModelControl().reload(supervised.server.http_address, "draft", 5)
    stream = GrpcStream(supervised.server.grpc_address)
    with pytest.raises(Exception, match="restricted"):
        stream.client.unload_model("draft")
    stream.close()
    assert supervised.ask() is not None
