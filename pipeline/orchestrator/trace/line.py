"""The lines of a trace file: what stands at its start, one per round, and one where lines were lost."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from pipeline.drafting.base import Offer
from pipeline.engine.manifest import CostTable

TRACE_VERSION = 1
_FORBID = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class TraceStart:
    """Written when a deployment opens the file; what follows is its.

    Attributes:
        version: of the schema.
        deployment: name of the spec.
        controller: kind that the spec names.
        max_draft_len: K that the target can verify at most.
        burst: plain tokens per target call at most.
        target_cost, draft_cost: seconds per pass by new tokens, as in the manifests; no draft model: None.
        time_s: Unix time.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    version: int
    deployment: str
    controller: str
    max_draft_len: Annotated[int, Field(ge=0)]
    burst: Annotated[int, Field(ge=1)]
    target_cost: CostTable
    draft_cost: CostTable | None
    time_s: float
    kind: Literal["start"] = "start"

    def to_json(self) -> str:
        draft = None if self.draft_cost is None else self.draft_cost.model_dump()
        return json.dumps({**asdict(self), "target_cost": self.target_cost.model_dump(), "draft_cost": draft})


@dataclass(frozen=True)
class TraceRound:
    """One round of one answer.

    Attributes:
        request: unique per answer; client_id: the client's own name for its request, often "".
        round: number within the answer; 0 takes in the prompt.
        position: tokens committed before the round; remaining: tokens that max_tokens still allowed then.
        offers: what could have been drafted.
        k: draft tokens that the controller asked for; burst: plain tokens where that is 0.
        key: of the offer that was taken, or None; reason: of the decision.
        draft_ids: what was proposed.
        drafted, accepted: verified and kept, before EOS, stop words and length.
        computed: tokens that the target decided; committed: of those, what the client was given.
        load: requests in flight.
        observed: the controller learnt from it; false where a prompt was taken in or a draft failed.
        draft_s, verify_s, overhead_s: wall seconds; time_s: Unix time at its end.
        ahead: the draft was made during the round before; draft_s is what was still waited for it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    request: str
    client_id: str
    round: Annotated[int, Field(ge=0)]
    position: Annotated[int, Field(ge=0)]
    remaining: Annotated[int, Field(ge=0)]
    offers: tuple[Offer, ...]
    k: Annotated[int, Field(ge=0)]
    burst: Annotated[int, Field(ge=0)]
    key: str | None
    reason: str
    draft_ids: tuple[int, ...]
    drafted: Annotated[int, Field(ge=0)]
    accepted: Annotated[int, Field(ge=0)]
    computed: Annotated[int, Field(ge=0)]
    committed: Annotated[int, Field(ge=0)]
    load: int
    observed: bool
    draft_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    verify_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    overhead_s: Annotated[float, Field(allow_inf_nan=False)]
    time_s: float
    ahead: bool = False
    kind: Literal["round"] = "round"

    @property
    def source(self) -> str | None:
        """Of the draft: "ngram", "model", or None for plain decoding."""
        return None if self.key is None else self.key.partition("-")[0]

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class TraceGap:
    """Lines that could not be kept: the queue or the disk was full."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    dropped: Annotated[int, Field(ge=1)]
    kind: Literal["gap"] = "gap"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


TraceLine = Annotated[TraceStart | TraceRound | TraceGap, Field(discriminator="kind")]
