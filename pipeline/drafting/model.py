"""A draft model: K steps of a small engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.drafting.base import Draft, DraftContext, Drafter, DraftSession, Offer
from pipeline.engine.manifest import Manifest
from pipeline.engine.step import FloatArray, StepModel, StepRequest
from pipeline.engine.waiting import wait_for
from pipeline.errors import StepError
from pipeline.sampling.params import GREEDY, SamplingParams
from pipeline.sampling.random import call_seed

TEMPERATURE_EPSILON = 1e-6  # TensorRT-LLM divides logits by T + 1e-6 (facts: processors of its decoder)


class ModelDrafter(Drafter):
    """Asks a draft step model.

    Args:
        step_model: the draft engine.
        manifest: its limits and capabilities.
        deadline_s: seconds after which a call is abandoned.
    """

    def __init__(self, step_model: StepModel, manifest: Manifest, deadline_s: float) -> None:
        self._step_model = step_model
        self._manifest = manifest
        self._deadline_s = deadline_s

    def start(self, context: DraftContext) -> ModelSession:
        return ModelSession(context, self._step_model, self._manifest, self._deadline_s)


class ModelSession(DraftSession):
    """Drafts of one request. Calls carry no end_id and no stop words: EOS is an ordinary draft token."""

    def __init__(self, context: DraftContext, step_model: StepModel, manifest: Manifest, deadline_s: float) -> None:
        self._context = context
        self._step_model = step_model
        self._manifest = manifest
        self._deadline_s = deadline_s
        self._tokens = list(context.prompt_ids)
        self._sampling = draft_sampling(context.sampling, manifest.capabilities.draft_options)

    def extend(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)

    def offers(self, limit: int) -> tuple[Offer, ...]:
        room = self._manifest.limits.max_seq_len - len(self._tokens)
        most = min(limit, room)
        return (Offer("model", "model", most),) if most > 0 else ()

    def propose(self, offer: Offer, k: int, round_index: int) -> Draft:
        context, greedy = self._context, self._sampling.greedy
        request = StepRequest(
            request_id=f"{context.request_id}/draft/{round_index}",
            input_ids=tuple(self._tokens),
            max_new_tokens=k,
            sampling=self._sampling,
            seed=call_seed(context.seed, round_index, "draft"),
            return_logits=not greedy,
            arrival=context.arrival,
        )
        result = wait_for(self._step_model.submit(request), self._deadline_s, "draft")
        ids = result.output_ids[:k]
        if not ids:
            raise StepError("the draft returned no token")
        if greedy:
            return Draft("model", ids)
        logits = result.generation_logits
        if logits is None or logits.shape[0] < len(ids):
            raise StepError("the draft returned no generation_logits")
        return Draft("model", ids, log_q(logits[: len(ids)], self._sampling, self._manifest))


def draft_sampling(sampling: SamplingParams, options: Sequence[str]) -> SamplingParams:
    """The request's options as far as the draft may be sent them; the law q may differ, the text's law does not."""
    if sampling.greedy:
        return GREEDY
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k if "top_k" in options else 0,
        top_p=sampling.top_p if "top_p" in options else 1.0,
    )


def log_q(logits: FloatArray, sampling: SamplingParams, manifest: Manifest) -> FloatArray:
    """What the target takes as a plain softmax: log laws as they are, raw logits divided by the temperature."""
    if manifest.capabilities.generation_logits == "log_law":
        return logits
    scaled: FloatArray = (logits / (sampling.temperature + TEMPERATURE_EPSILON)).astype(np.float32)
    return scaled
