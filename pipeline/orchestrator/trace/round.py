"""From a committed round to its line in the trace."""

from __future__ import annotations

import time

from pipeline.drafting.base import Draft
from pipeline.orchestrator.controllers.base import Decision, Observation
from pipeline.orchestrator.run import Run
from pipeline.orchestrator.statistics import RoundRecord
from pipeline.orchestrator.trace.line import TraceRound


def trace_line(
    run: Run, record: RoundRecord, decision: Decision, draft: Draft | None, seen: Observation, observed: bool
) -> TraceRound:
    """What the trace says of a round that was committed.

    Args:
        draft: None where the round had none.
        seen: as the controller saw it.
        observed: whether it was shown to the controller.
    """
    return TraceRound(
        request=run.unique,
        client_id=run.request.request_id,
        round=record.index,
        position=run.answer.token_count - record.committed,
        remaining=run.answer.remaining + record.committed,
        offers=tuple(run.offers),
        k=decision.k,
        burst=decision.burst,
        key=seen.key,
        reason=record.reason,
        draft_ids=draft.ids if draft is not None else (),
        drafted=seen.drafted,
        accepted=seen.accepted,
        computed=seen.computed,
        committed=record.committed,
        load=seen.load,
        observed=observed,
        draft_s=record.draft_s,
        verify_s=record.verify_s,
        overhead_s=record.overhead_s,
        time_s=time.time(),
        ahead=record.ahead,
    )
