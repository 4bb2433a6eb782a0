"""How many drafts were kept: by kind of text, and by place in the block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Acceptance:
    """Drafts of some requests.

    Attributes:
        drafted, accepted: tokens.
        drafted_by_position, accepted_by_position: rounds that verified a draft at place 1, 2, ..., and kept it.
    """

    drafted: int
    accepted: int
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]

    @property
    def rate(self) -> float | None:
        """Accepted over drafted; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @classmethod
    def of(cls, told: Sequence[Mapping[str, Any]]) -> Acceptance:
        """Args: told: `spec_decode_stats` of requests, as parsed from JSON (keys of histograms are texts)."""
        lengths: dict[int, int] = {}
        kept: dict[int, int] = {}
        for one in told:
            for k, rounds in one["histogram_by_draft_length"].items():
                lengths[int(k)] = lengths.get(int(k), 0) + int(rounds)
            for k, rounds in enumerate(one["acceptance_histogram"]):
                kept[k] = kept.get(k, 0) + int(rounds)
        longest = max((k for k, rounds in lengths.items() if rounds), default=0)
        places = range(1, longest + 1)
        return cls(
            drafted=sum(int(one["num_draft_tokens"]) for one in told),
            accepted=sum(int(one["num_accepted_draft_tokens"]) for one in told),
            drafted_by_position=tuple(sum(n for k, n in lengths.items() if k >= place) for place in places),
            accepted_by_position=tuple(sum(n for k, n in kept.items() if k >= place) for place in places),
        )
