"""The one place where an engine's ways are turned into ours: what it is sent, what it sends, what its errors mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline.engine.step import StepRequest, StepResult
from pipeline.errors import InvalidRequestError, SpecDecodeError, StepError
from pipeline.serving.columns import fit_columns, one_hot_logits
from pipeline.serving.contract import Array
from pipeline.serving.dialect import OWN, Dialect
from pipeline.serving.engine_errors import draft_limit, explained
from pipeline.serving.request_tensors import EncodedCall, encode_request
from pipeline.serving.result_tensors import decode_result


class StepAdapter:
    """Speaks with one engine, driven by its dialect.

    Args:
        dialect: of the engine.
    """

    def __init__(self, dialect: Dialect = OWN) -> None:
        self._dialect = dialect
        self._most_drafts: int | None = None  # learnt where the manifest promised too many

    def prepare(self, request: StepRequest) -> StepRequest:
        """The request as this engine can take it; its law is the same.

        Drafts are cut before the first that the engine has no token for. That is exact under the token rule, although
        it looks at what was drawn: whether x_i is in the vocabulary is decided before any u, and what is drawn inside
        follows q given that, which is the softmax of the columns that are left.

        Raises:
            InvalidRequestError: it would get fewer tokens than it asks for, which would read as an end token.
            StepError: the text holds a token that the engine does not have.
        """
        dialect = self._dialect
        room = dialect.max_seq_len
        if room is not None and len(request.input_ids) + request.max_new_tokens > room:
            limit = f"input_ids ({len(request.input_ids)} tokens) + request_output_len must not exceed {room}"
            raise InvalidRequestError("request_output_len", request.max_new_tokens, limit)
        kept = len(request.draft_ids)
        if dialect.vocab_size is not None:
            largest = max(request.input_ids, default=0)
            if largest >= dialect.vocab_size:
                raise StepError(f"input_ids = {largest}: the engine has {dialect.vocab_size} tokens")
            kept = next((i for i, token in enumerate(request.draft_ids) if token >= dialect.vocab_size), kept)
        if self._most_drafts is not None:
            kept = min(kept, self._most_drafts)
        request = _first_drafts(request, kept)
        if not request.draft_ids or request.sampling.greedy:
            return request
        if request.draft_logits is not None:
            return replace(request, draft_logits=fit_columns(request.draft_logits, dialect.vocab_size, dialect.width))
        if dialect.one_hot_logits and dialect.width is not None:
            return replace(request, draft_logits=one_hot_logits(request.draft_ids, dialect.width))
        return request

    def encode(self, request: StepRequest) -> EncodedCall:
        """A prepared request as tensors.

        Raises:
            InvalidRequestError: the engine cannot apply an option, or a number does not fit its tensor.
        """
        return encode_request(request, self._dialect)

    def decode(self, tensors: Mapping[str, Array], request: StepRequest) -> StepResult:
        """What the engine answered to a prepared request.

        Raises:
            StepError: a tensor is missing, or does not fit the request.
        """
        return decode_result(tensors, request, self._dialect)

    def explain(self, error: StepError, request: StepRequest) -> SpecDecodeError:
        """What an engine's error means, and what can be done."""
        return explained(error, request)

    def shorter(self, request: StepRequest, error: StepError) -> StepRequest | None:
        """A request with fewer drafts to send instead of one that was refused for their number, else None.

        Exact, since how many there may be does not depend on which they are. The limit is remembered.
        """
        limit = draft_limit(error)
        if limit is None or limit >= len(request.draft_ids):
            return None
        self._most_drafts = limit
        return replace(_first_drafts(request, limit), request_id=f"{request.request_id}/shorter")


def _first_drafts(request: StepRequest, count: int) -> StepRequest:
    """The request with its first drafts; without any it is plain decoding of as many tokens as it asked for."""
    if count == len(request.draft_ids):
        return request
    logits = request.draft_logits
    return replace(
        request,
        draft_ids=request.draft_ids[:count],
        draft_logits=logits[:count] if count and logits is not None else None,
        max_new_tokens=count + 1 if count else request.max_new_tokens,
    )
