"""Step models that cost next to nothing, so that what is left of a round is the orchestrator's own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from pipeline.drafting.model import ModelDrafter
from pipeline.engine.manifest import Capabilities, CostTable, Limits, Manifest
from pipeline.engine.step import KvUse, StepModel, StepRequest, StepResult
from pipeline.orchestrator.admission import Admission
from pipeline.orchestrator.controllers import make_controllers
from pipeline.orchestrator.intake import TargetFacts
from pipeline.orchestrator.loop import Orchestrator
from pipeline.orchestrator.verifier import StepVerifier
from pipeline.sampling.params import OPTIONS
from pipeline.spec import ControllerSpec
from pipeline.text.tokenizer import Tokenizer

WRONG_EVERY = 4  # the draft errs at every fourth place of the text
TOKENS_PER_BLOCK = 32
MAX_DRAFT_LEN = 11
DEADLINE_S = 60.0
TARGET_COST = {1: 0.0120, 4: 0.0144, 6: 0.0168, 12: 0.0270}  # seconds, of the demo's target
DRAFT_COST = {1: 0.0015}


class ScriptedTarget(StepModel):
    """Plain decoding says `text` over and over, by place in the sequence."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text = tuple(text)

    def submit(self, request: StepRequest) -> Future[StepResult]:
        text, start = self._text, len(request.input_ids)
        said = [text[place % len(text)] for place in range(start, start + request.max_new_tokens)]
        drafts = request.draft_ids
        kept = 0
        if drafts:
            while kept < len(drafts) and drafts[kept] == said[kept]:
                kept += 1
            said = said[: kept + 1]
        future: Future[StepResult] = Future()
        future.set_result(StepResult(tuple(said), len(drafts), kept, kv=KvUse(computed_tokens=len(drafts) + 1)))
        return future

    def stop(self, request_id: str) -> None: ...

    def close(self) -> None: ...


class ScriptedDraft(StepModel):
    """Proposes what the target will say, but for every fourth place of the text."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text = tuple(text)

    def submit(self, request: StepRequest) -> Future[StepResult]:
        text, start = self._text, len(request.input_ids)
        places = range(start, start + request.max_new_tokens)
        ids = tuple(text[(place + (place % WRONG_EVERY == 0)) % len(text)] for place in places)
        future: Future[StepResult] = Future()
        future.set_result(StepResult(ids))
        return future

    def stop(self, request_id: str) -> None: ...

    def close(self) -> None: ...


def scripted_orchestrator(
    tokenizer: Tokenizer, text: Sequence[int], vocab_size: int, in_flight: int, controller: ControllerSpec
) -> Orchestrator:
    """The product's own loop, intake, admission, drafter, verifier and controller over scripted step models.

    Args:
        text: tokens that neighbours differ in, which no request ends with.
        vocab_size: of the tokenizer.
        in_flight: requests that must fit.
    """
    limits = Limits(
        max_seq_len=2048,
        max_draft_len=MAX_DRAFT_LEN,
        max_requests=in_flight,
        kv_blocks=in_flight * 2048 // TOKENS_PER_BLOCK,
        tokens_per_block=TOKENS_PER_BLOCK,
    )
    target_cost = CostTable(context_tokens=128, seconds_by_tokens=TARGET_COST)
    draft = _draft_manifest(limits, vocab_size)
    return Orchestrator(
        tokenizer=tokenizer,
        target=TargetFacts(limits, draft.capabilities, None, vocab_size),
        verifier=StepVerifier(ScriptedTarget(text), DEADLINE_S),
        drafter=ModelDrafter(ScriptedDraft(text), draft, DEADLINE_S),
        controllers=make_controllers(controller, MAX_DRAFT_LEN, target_cost, draft.cost),
        admission=Admission(limits.kv_blocks, TOKENS_PER_BLOCK, in_flight),
        burst=controller.burst,
    )


def _draft_manifest(limits: Limits, vocab_size: int) -> Manifest:
    return Manifest(
        version=1,
        role="draft",
        engine="embedded",
        model="scripted",
        source_sha256="",
        dtype="float32",
        vocab_size=vocab_size,
        padded_vocab_size=vocab_size,
        end_id=None,
        files={},
        limits=limits,
        capabilities=Capabilities(
            rules=("block", "token", "match"),
            draft_options=("temperature", "top_k", "top_p"),
            options=OPTIONS,
            generation_logits="log_law",
            log_probs=False,
            drops_drafts=False,
            deterministic=True,
        ),
        cost=CostTable(context_tokens=128, seconds_by_tokens=DRAFT_COST),
        built_with={},
    )
