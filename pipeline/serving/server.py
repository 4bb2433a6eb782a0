"""A Triton server process: started, watched, stopped, and cleaned up after."""

from __future__ import annotations

import atexit
import http.client
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pipeline.errors import ServerError
from pipeline.orchestrator.switch import SWITCH_NAME
from pipeline.serving.contract import SPEC_DECODE_MODEL
from pipeline.serving.launch import DEEP_STACK, thread_pool_size
from pipeline.serving.local_http import open_local
from pipeline.serving.ports import HOST, choose_ports
from pipeline.serving.server_lock import ServerLock, ServerRecord
from pipeline.serving.server_options import ServerOptions
from pipeline.serving.shared_memory import (
    check_space,
    clean_stale,
    kill_group,
    region_prefix,
    remove_regions,
)
from pipeline.serving.stall import StallWatch
from pipeline.serving.triton_install import TritonInstall, find_triton
from pipeline.serving.triton_log import TritonLog
from pipeline.spec import ROOT

_POLL_S = 0.05
_STOP_MARGIN_S = 2.0  # a client's open stream can keep Triton from exiting after its own timeout

_STUB_ENV = {"TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class StartProgress:
    """How far a start has come: seconds since it began, models that are loaded, models in all."""

    elapsed_s: float
    loaded: tuple[str, ...]
    models: tuple[str, ...]


class TritonServer:
    """A context manager round one tritonserver on 127.0.0.1.

    Args:
        repository: rendered by `render_repository`.
        engines_dir: one server at a time may serve the engines of a folder.
        options: ports, sizes, environment.
        install: None finds one.
    """

    def __init__(
        self,
        repository: Path,
        engines_dir: Path,
        options: ServerOptions | None = None,
        install: TritonInstall | None = None,
    ) -> None:
        self._repository = repository.resolve()
        self._options = options or ServerOptions()
        self._install = install
        self._engines_dir = engines_dir.resolve()
        self._lock = ServerLock(self._engines_dir)
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._models: tuple[str, ...] = ()
        self.ports = self._options.ports
        self.log = TritonLog(self._options.log_path or self._repository / "server.log")

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Of tritonserver (or mpirun), which leads a session of this number; None before start and after stop."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Of tritonserver once it has ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def http_address(self) -> str:
        return f"{HOST}:{self.ports.http}"

    @property
    def grpc_address(self) -> str:
        return f"{HOST}:{self.ports.grpc}"

    @property
    def metrics_address(self) -> str:
        return f"{HOST}:{self.ports.metrics}"

    def start(self) -> None:
        """Start the process; `wait_ready` waits for its models.

        Raises:
            ServerError: no server installed, a port in use, the engines served already, or /dev/shm too
                small.
        """
        if self._process is not None:
            raise ServerError("the server is started already")
        self._models = tuple(sorted(path.parent.name for path in self._repository.glob("*/config.pbtxt")))
        if not self._models:
            raise ServerError(f"{self._repository} holds no model; render it first (`make repo`)")
        install = self._install or find_triton()
        self._lock.acquire()
        try:
            # A deployment begins with what its spec says, not with what its predecessor was switched to.
            (self._engines_dir / SWITCH_NAME).unlink(missing_ok=True)
            clean_stale()
            check_space(self._options.shm_bytes * len(self._models), self._options.laws)
            self.ports = choose_ports(self.ports)  # the same ones when it is started again
            self._process = self._spawn(install)
        except BaseException:
            self._lock.release()
            raise
        self._lock.write(ServerRecord(self._process.pid, self.ports.http, self.ports.grpc, self.ports.metrics))
        atexit.register(self.stop)

    def wait_ready(self, timeout_s: float = 300.0, progress: Callable[[StartProgress], None] | None = None) -> None:
        """Wait until every model is loaded. A start that hangs is tried once more.

        A server that cannot become ready is stopped.

        Raises:
            ServerError: with the reason out of Triton's log: a model failed to load, the server died, or time ran out.
        """
        deadline = self._started + timeout_s
        # Not on a GPU: engines that are read from a slow disk look like a start that hangs.
        watch, again = StallWatch(self._process.pid if self._process else 0), not self._options.launch.gpu
        while not self._http_ready():
            if progress is not None:
                progress(StartProgress(time.monotonic() - self._started, self.log.loaded(), self._models))
            problem = None
            if not self.running:
                problem = f"Triton ended while it started: {self.log.failure()}"
            elif self.log.fatal() is not None:
                problem = f"Triton cannot become ready: {self.log.failure()}"
            elif watch.stalled() and again:
                self.stop()
                self.start()
                assert self._process is not None
                watch, again = StallWatch(self._process.pid), False
            elif time.monotonic() > deadline:
                missing = sorted(set(self._models) - set(self.log.loaded()))
                problem = f"Triton was not ready after {timeout_s:g} s; not loaded: {', '.join(missing) or 'none'}"
            if problem is not None:
                self.stop()
                raise ServerError(f"{problem} (log: {self.log.path})")
            time.sleep(_POLL_S)
        if progress is not None:
            progress(StartProgress(time.monotonic() - self._started, self._models, self._models))

    def wait_inference(
        self, timeout_s: float = 60.0, prompt: str = "Hello", max_tokens: int = 1, num_draft_tokens: int | None = None
    ) -> float:
        """Run one real request: Triton's own readiness stays "ready" when a model's process has died.

        Returns:
            Seconds that it took.

        Raises:
            ServerError: no answer in time, or an error instead of an answer.
        """
        started = time.monotonic()
        wanted: dict[str, str | int] = {"text_input": prompt, "max_tokens": max_tokens}
        if num_draft_tokens is not None:
            wanted["num_draft_tokens"] = num_draft_tokens
        body = json.dumps(wanted).encode()
        url = f"http://{self.http_address}/v2/models/{SPEC_DECODE_MODEL}/generate"
        try:
            with open_local(urllib.request.Request(url, body), timeout_s) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise ServerError(f"a test request failed: {_error_message(error.read())}") from error
        except (OSError, http.client.HTTPException) as error:
            state = "is running" if self.running else f"has ended: {self.log.failure()}"
            raise ServerError(f"a test request got no answer in {timeout_s:g} s ({error}); Triton {state}") from error
        if "error" in answer:  # Triton has sent its status by then: 200
            raise ServerError(f"a test request failed: {answer['error']}")
        return time.monotonic() - started

    def stop(self, *, at_once: bool = False) -> None:
        """Stop the server, by force if need be or `at_once`, and remove its shared memory and its lock; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self.stop)
        try:
            if process.poll() is None and not at_once:
                process.send_signal(signal.SIGINT)
                process.wait(self._options.exit_timeout_s + _STOP_MARGIN_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            kill_group(process.pid)
            process.wait()
            remove_regions(process.pid)
            self._lock.release()

    def _spawn(self, install: TritonInstall) -> subprocess.Popen[bytes]:
        options = self._options
        flags = [
            f"--model-repository={self._repository}",
            f"--backend-directory={install.backends}",
            "--model-control-mode=explicit",
            "--load-model=*",
            "--disable-auto-complete-config",
            f"--allow-gpu-metrics={str(options.launch.gpu).lower()}",
            f"--exit-timeout-secs={options.exit_timeout_s}",
            f"--http-address={HOST}",
            f"--http-port={self.ports.http}",
            f"--grpc-address={HOST}",
            f"--grpc-port={self.ports.grpc}",
            f"--metrics-address={HOST}",
            f"--metrics-port={self.ports.metrics}",
            f"--backend-config=python,shm-default-byte-size={options.shm_bytes}",
            # BLS calls and response sends share this pool.
            f"--backend-config=python,thread-pool-size={thread_pool_size(options.requests)}",
            *options.launch.arguments,
            *options.arguments,
        ]
        env = install.server.environment(dict(os.environ))
        env.update({**_STUB_ENV, **options.launch.env, **options.env})
        # model.py puts this on its path: the stubs import `pipeline` from this checkout, installed or not.
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        # The shell becomes what is started under its own pid, which thereby names the shared-memory regions.
        region = f'--backend-config=python,shm-region-prefix-name="{region_prefix("$$")}"'
        program = [*options.launch.wrapper, str(install.server.path)]
        command = ["/bin/sh", "-c", f'{DEEP_STACK}; exec "$0" "$@" {region}', *program, *flags]
        self.log.path.parent.mkdir(parents=True, exist_ok=True)
        self._started = time.monotonic()
        with self.log.path.open("wb") as log:
            return subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self._lock.fd,),
            )

    def _http_ready(self) -> bool:
        if not self.running:
            return False
        url = f"http://{self.http_address}/v2/health/ready"
        try:
            with open_local(url, 1) as response:
                return bool(response.status == 200)
        except (OSError, http.client.HTTPException):
            return False


def _error_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]
