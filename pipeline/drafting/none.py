"""No draft: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.drafting.base import Draft, DraftContext, Drafter, DraftSession, Offer


class NoDrafter(Drafter):
    """Offers nothing."""

    def start(self, context: DraftContext) -> DraftSession:
        return _NoSession()


class _NoSession(DraftSession):
    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def offers(self, limit: int) -> tuple[Offer, ...]:
        return ()

    def propose(self, offer: Offer, k: int, round_index: int) -> Draft:
        raise AssertionError("no offer was made")
