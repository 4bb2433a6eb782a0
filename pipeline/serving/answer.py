"""The response side of one request of a decoupled Triton model."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any

from pipeline.errors import OverloadedError
from pipeline.serving.backend import triton_error
from pipeline.serving.contract import Tensors
from pipeline.serving.workers import WorkerPool


class Answer:
    """Sends responses in order from a thread of the outbox: the request goes on decoding meanwhile.

    Sending a response and asking whether the client is still there are round trips to the server's process, a few
    percent of a round. FINAL goes out exactly once and last: asking a sender whether its request is cancelled after
    FINAL was sent is a use after free that takes the whole server down (python_backend release 24.10).

    Args:
        utils: `triton_python_backend_utils`.
        sender: the request's response sender.
        outbox: its threads.
    """

    def __init__(self, utils: Any, sender: Any, outbox: WorkerPool) -> None:
        self._utils = utils
        self._sender = sender
        self._outbox = outbox
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Any, bool]] = deque()  # (response, final)
        self._working = False
        self._asking = False
        self._cancelled = False
        self._closed = False

    def was_withdrawn(self) -> bool:
        """Whether the client has gone, asked at once: before the first response, when nothing else is under way."""
        self._ask()
        return self._cancelled

    def is_cancelled(self) -> bool:
        """What was heard last; asks again, for the next round."""
        with self._lock:
            if self._closed:
                return True
            self._asking = True
            self._start()
            return self._cancelled

    def send(self, tensors: Tensors, *, final: bool) -> None:
        """Send a response; a final one closes the answer."""
        outputs = [self._utils.Tensor(name, array) for name, array in tensors.items()]
        self._post(self._utils.InferenceResponse(output_tensors=outputs), final=final)

    def fail(self, error: BaseException) -> None:
        """End with an error; does nothing where the answer is closed."""
        error = triton_error(self._utils, error)
        self._post(self._utils.InferenceResponse(output_tensors=[], error=error), final=True)

    def _post(self, response: Any, *, final: bool) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = final
            self._waiting.append((response, final))
            self._start()

    def _start(self) -> None:
        if self._working:
            return
        self._working = True
        try:
            self._outbox.submit(self._work)
        except OverloadedError:  # closed: what is said now still has to leave
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting and not self._asking:
                    self._working = False
                    return
                posted = self._waiting.popleft() if self._waiting else None
                if posted is None:
                    self._asking = False
            if posted is None:
                self._ask()
            else:
                self._send(*posted)
                if posted[1]:
                    return  # for ever at work: nobody may touch the sender again

    def _ask(self) -> None:
        with suppress(Exception):  # no news
            self._cancelled = bool(self._sender.is_cancelled())

    def _send(self, response: Any, final: bool) -> None:
        try:
            if not final:
                self._sender.send(response)
                return
            flag = self._utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            try:
                self._sender.send(response, flags=flag)
            except Exception as error:
                # Without a FINAL flag the client would wait for ever.
                self._utils.Logger.log_error(f"a final response could not be sent: {error}")
                with suppress(Exception):  # a sender that counts itself closed refuses
                    self._sender.send(flags=flag)
        except Exception as error:
            self._utils.Logger.log_error(f"a response could not be sent: {error}")
