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
from pipeline.sampling.params import GREEDY, SamplingParams
from pipeline.serving.contract import (
    SPEC_DECODE,
    SPEC_DECODE_MODEL,
    STEP,
    TARGET_MODEL,
    Array,
    TensorSpec,
)
from pipeline.serving.generation import encode_generation
from pipeline.serving.request_tensors import encode_request

Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """One response of a streamed answer.

    Attributes:
        text: new text.
        token_ids: committed tokens that it adds.
        round: how its round went, where asked for.
        statistics: on the last one of an answer.
        finish_reason: on the last one of an answer.
        seconds: since the request was sent.
        log_probs: one per token, where asked for.
        cum_log_prob: sum over the answer up to here, where asked for.
        sequence_index: which of num_return_sequences answers it belongs to.
    """

    text: str
    token_ids: tuple[int, ...]
    round: Json | None
    statistics: Json | None
    finish_reason: str | None
    seconds: float
    log_probs: tuple[float, ...] = ()
    cum_log_prob: float | None = None
    sequence_index: int = 0


@dataclass(frozen=True)
class Event:
    """One response: what it adds to which request, and whether it is that request's last."""

    request_id: str
    replies: tuple[Reply, ...]
    final: bool


class SpecDecodeClient:
    """A connection to a deployment. One answer at a time with `generate`; several with `send` and `next_event`.

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

    def send(self, request: GenerationRequest) -> None:
        """Send a request, and wait for nothing.

        Raises:
            StepError: the server's error, with the server's words.
            ServerError: it cannot be reached.
        """
        tensors, parameters = encode_generation(request)
        try:
            self._client.async_stream_infer(
                SPEC_DECODE_MODEL,
                [_input(SPEC_DECODE.input(name), array) for name, array in tensors.items()],
                request_id=request.request_id,
                parameters=parameters or None,
                enable_empty_final_response=True,
            )
        except InferenceServerException as broken:
            # A broken stream says why through its callback.
            _, cause = (None, broken) if self._answers.empty() else self._answers.get()
            raise _error(cause or broken, self._address) from broken

    def generate(self, request: GenerationRequest) -> Iterator[Reply]:
        """Answers as they come; a request that does not stream gets one reply per answer, all at its end.

        Raises:
            StepError: the server's error, with the server's words.
            ServerError: it cannot be reached, or says nothing for too long.
        """
        started = time.perf_counter()
        self.send(request)
        while True:
            event = self.next_event(started)
            yield from event.replies
            if event.final:
                return

    def next_event(self, started: float) -> Event:
        """The next response to any request that was sent.

        Args:
            started: moment of `time.perf_counter` that `Reply.seconds` count from.

        Raises:
            StepError: the server's error, with the server's words; it ends one request, and does not say which.
            ServerError: it cannot be reached, or says nothing for too long.
        """
        try:
            result, error = self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            raise ServerError(f"no response from {self._address} for {self._timeout_s:g} s") from None
        if error is not None:
            raise _error(error, self._address)
        response = result.get_response()
        final = bool(response.parameters["triton_final_response"].bool_param)
        return Event(response.id, tuple(_replies(result, time.perf_counter() - started)), final)

    def decode_plain(
        self,
        input_ids: tuple[int, ...],
        max_tokens: int,
        end_id: int | None,
        sampling: SamplingParams = GREEDY,
        seed: int = 0,
    ) -> tuple[int, ...]:
        """The plain baseline: one direct call of the target with all of max_tokens.

        Returns:
            New tokens, without the end token.
        """
        result = self._call_target(StepRequest("", input_ids, max_tokens, sampling=sampling, seed=seed, end_id=end_id))
        return tuple(int(token) for token in result.as_numpy("output_ids").reshape(-1))

    def next_log_law(self, input_ids: tuple[int, ...], sampling: SamplingParams) -> FloatArray:
        """[vocab] the target's scores of the next token: its log law, or its raw logits.

        Raises:
            StepError: the target gives none.
        """
        result = self._call_target(StepRequest("", input_ids, 1, sampling=sampling, return_logits=True))
        scores: FloatArray | None = result.as_numpy("generation_logits")
        if scores is None:
            raise StepError("the target gives no generation_logits")
        return scores.reshape(-1)

    def top_margin(self, input_ids: tuple[int, ...]) -> float:
        """How much likelier the target's best next token is than its second best, in log-probability."""
        law = np.sort(self.next_log_law(input_ids, SamplingParams(temperature=1.0)))
        return float(law[-1] - law[-2])

    def _call_target(self, request: StepRequest) -> Any:
        call = encode_request(request)
        inputs = [_input(STEP.input(name), array) for name, array in call.tensors.items()]
        try:
            return self._client.infer(TARGET_MODEL, inputs, client_timeout=self._timeout_s)
        except InferenceServerException as error:
            raise _error(error, self._address) from error


def _input(spec: TensorSpec, array: Array) -> Any:
    tensor = grpcclient.InferInput(spec.name, list(array.shape), "BYTES" if spec.kind == "STRING" else spec.kind)
    tensor.set_data_from_numpy(array)
    return tensor


def _replies(result: Any, seconds: float) -> list[Reply]:
    """The replies in one response, one per answer; an empty final response has none."""

    def items(name: str) -> list[Any]:
        array = result.as_numpy(name)
        return [] if array is None else list(array.reshape(-1))

    texts = [text.decode() for text in items("text_output")]
    if not texts:
        return []
    ids = result.as_numpy("token_ids").reshape(len(texts), -1)
    log_probs = result.as_numpy("output_log_probs")
    rounds, statistics = items("spec_decode_round"), items("spec_decode_stats")
    reasons, sums, index = items("finish_reason"), items("cum_log_probs"), items("sequence_index")
    replies = []
    for i, text in enumerate(texts):
        tokens = tuple(int(token) for token in ids[i] if token >= 0)
        values = () if log_probs is None else log_probs.reshape(len(texts), -1)[i, : len(tokens)]
        replies.append(
            Reply(
                text=text,
                token_ids=tokens,
                round=json.loads(rounds[i]) if rounds else None,
                statistics=json.loads(statistics[i]) if statistics else None,
                finish_reason=reasons[i].decode() if reasons else None,
                seconds=seconds,
                log_probs=tuple(float(value) for value in values),
                cum_log_prob=float(sums[i]) if sums else None,
                sequence_index=int(index[i]) if index else i,
            )
        )
    return replies


def _error(error: Exception, address: str) -> Exception:
    message = error.message() if isinstance(error, InferenceServerException) else str(error)
    if "failed to connect" in message or "Connection refused" in message:
        return ServerError(f"no server at {address}; start one with `specdec serve`")
    return StepError(message)
