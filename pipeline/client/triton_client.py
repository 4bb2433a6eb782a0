"""A tritonclient that speaks to `spec_decode` by gRPC streaming, and to step models directly."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from pipeline.engine.step import FloatArray, StepRequest
from pipeline.errors import ServerError, StepError
from pipeline.orchestrator.request import GenerationRequest
from pipeline.sampling.params import SamplingParams
from pipeline.serving.contract import (
    CHAT_PARAMETER,
    RULE_PARAMETER,
    SPEC_DECODE,
    SPEC_DECODE_MODEL,
    STEP,
    TARGET_MODEL,
    Array,
    TensorSpec,
)
from pipeline.serving.request_tensors import encode_request

Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """One response of a streamed answer.

    Attributes:
        text: new text.
        token_ids: committed tokens that it adds.
        round: how its round went, where asked for.
        statistics: on the last one.
        finish_reason: on the last one.
        seconds: since the request was sent.
    """

    text: str
    token_ids: tuple[int, ...]
    round: Json | None
    statistics: Json | None
    finish_reason: str | None
    seconds: float


class SpecDecodeClient:
    """A connection to a deployment. One answer at a time.

    Args:
        address: host:port of the gRPC endpoint.
        timeout_s: longest silence between two responses.
    """

    def __init__(self, address: str, timeout_s: float = 300.0) -> None:
        self._client = grpcclient.InferenceServerClient(address)
        self._address = address
        self._timeout_s = timeout_s
        self._answers: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
        self._client.start_stream(callback=lambda result, error: self._answers.put((result, error)))

    def __enter__(self) -> SpecDecodeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Without cancelling, the stream waits for what a hung server will never send.
        self.close(cancel=kind is not None)

    def close(self, *, cancel: bool = False) -> None:
        """End the stream; `cancel` also ends a request that runs."""
        self._client.stop_stream(cancel_requests=cancel)
        self._client.close()

    def generate(self, request: GenerationRequest) -> Iterator[Reply]:
        """Stream an answer.

        Raises:
            StepError: the server's error, with the server's words.
            ServerError: it cannot be reached, or says nothing for too long.
        """
        parameters: dict[str, Any] = {}
        if request.chat:
            parameters[CHAT_PARAMETER] = True
        if request.acceptance_rule != "auto":
            parameters[RULE_PARAMETER] = request.acceptance_rule
        started = time.perf_counter()
        try:
            self._client.async_stream_infer(
                SPEC_DECODE_MODEL,
                _inputs(request),
                request_id=request.request_id,
                parameters=parameters or None,
                enable_empty_final_response=True,
            )
        except InferenceServerException as broken:
            # A broken stream says why through its callback.
            _, cause = (None, broken) if self._answers.empty() else self._answers.get()
            raise _error(cause or broken, self._address) from broken
        while True:
            try:
                result, error = self._answers.get(timeout=self._timeout_s)
            except queue.Empty:
                raise ServerError(f"no response from {self._address} for {self._timeout_s:g} s") from None
            if error is not None:
                raise _error(error, self._address)
            reply = _reply(result, time.perf_counter() - started)
            if reply.text or reply.token_ids or reply.finish_reason is not None:
                yield reply
            if result.get_response().parameters["triton_final_response"].bool_param:
                return

    def decode_plain(self, input_ids: tuple[int, ...], max_tokens: int, end_id: int | None) -> tuple[int, ...]:
        """The plain baseline: one direct, greedy call of the target with all of max_tokens.

        Returns:
            New tokens, without the end token.
        """
        result = self._call_target(StepRequest("", input_ids, max_tokens, end_id=end_id))
        return tuple(int(token) for token in result.as_numpy("output_ids").reshape(-1))

    def next_log_law(self, input_ids: tuple[int, ...], sampling: SamplingParams) -> FloatArray:
        """[vocab] the target's log law of the next token."""
        result = self._call_target(StepRequest("", input_ids, 1, sampling=sampling, return_logits=True))
        law: FloatArray = result.as_numpy("generation_logits").reshape(-1)
        return law

    def top_margin(self, input_ids: tuple[int, ...]) -> float:
        """How much likelier the target's best next token is than its second best, in log-probability."""
        law = np.sort(self.next_log_law(input_ids, SamplingParams(temperature=1.0)))
        return float(law[-1] - law[-2])

    def _call_target(self, request: StepRequest) -> Any:
        call = encode_request(request, step_stats=False)
        inputs = [_input(STEP.input(name), array) for name, array in call.tensors.items()]
        try:
            return self._client.infer(TARGET_MODEL, inputs, client_timeout=self._timeout_s)
        except InferenceServerException as error:
            raise _error(error, self._address) from error


def _inputs(request: GenerationRequest) -> list[Any]:
    values: dict[str, Any] = {
        "text_input": [request.text_input.encode()],
        "max_tokens": [request.max_tokens],
        "temperature": [request.sampling.temperature],
        "top_k": [request.sampling.top_k],
        "top_p": [request.sampling.top_p],
        "stream": [request.stream],
        "exclude_input_in_output": [request.exclude_input_in_output],
        "return_perf_metrics": [request.return_perf_metrics],
    }
    if request.seed is not None:
        values["seed"] = [request.seed]
    if request.stop_words:
        values["stop_words"] = [word.encode() for word in request.stop_words]
    if request.end_id is not None:
        values["end_id"] = [request.end_id]
    if request.num_draft_tokens is not None:
        values["num_draft_tokens"] = [request.num_draft_tokens]
    inputs = []
    for name, value in values.items():
        spec = SPEC_DECODE.input(name)
        array: Array = np.array(value, spec.dtype)
        inputs.append(_input(spec, array.reshape(*SPEC_DECODE.batch_dims, -1)))
    return inputs


def _input(spec: TensorSpec, array: Array) -> Any:
    tensor = grpcclient.InferInput(spec.name, list(array.shape), "BYTES" if spec.kind == "STRING" else spec.kind)
    tensor.set_data_from_numpy(array)
    return tensor


def _reply(result: Any, seconds: float) -> Reply:
    def text(name: str) -> str | None:
        array = result.as_numpy(name)
        return None if array is None or not array.size else array.reshape(-1)[0].decode()

    ids = result.as_numpy("token_ids")
    round_json, statistics = text("spec_decode_round"), text("spec_decode_stats")
    return Reply(
        text=text("text_output") or "",
        token_ids=() if ids is None else tuple(int(token) for token in ids.reshape(-1)),
        round=json.loads(round_json) if round_json else None,
        statistics=json.loads(statistics) if statistics else None,
        finish_reason=text("finish_reason"),
        seconds=seconds,
    )


def _error(error: Exception, address: str) -> Exception:
    message = error.message() if isinstance(error, InferenceServerException) else str(error)
    if "failed to connect" in message or "Connection refused" in message:
        return ServerError(f"no server at {address}; start one with `specdec serve`")
    return StepError(message)
