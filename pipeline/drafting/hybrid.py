"""N-gram lookup where the text repeats itself, else the draft model: the controller takes the better offer."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.drafting.base import Draft, DraftContext, Drafter, DraftSession, Offer


class HybridDrafter(Drafter):
    """Offers of several drafters side by side, in their order."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = tuple(drafters)
        self.deterministic = all(drafter.deterministic for drafter in self._drafters)

    def start(self, context: DraftContext) -> DraftSession:
        return _HybridSession([drafter.start(context) for drafter in self._drafters])


class _HybridSession(DraftSession):
    def __init__(self, sessions: Sequence[DraftSession]) -> None:
        self._sessions = tuple(sessions)
        self._owner: dict[str, DraftSession] = {}  # by key: a controller may lower an offer's max_k

    def extend(self, tokens: Sequence[int]) -> None:
        for session in self._sessions:
            session.extend(tokens)

    def offers(self, limit: int) -> tuple[Offer, ...]:
        found = [(offer, session) for session in self._sessions for offer in session.offers(limit)]
        self._owner = {offer.key: session for offer, session in found}
        return tuple(offer for offer, _ in found)

    def propose(self, offer: Offer, k: int, round_index: int) -> Draft:
        return self._owner[offer.key].propose(offer, k, round_index)

    def look_ahead(self, draft: Draft, k: int, round_index: int) -> bool:
        return any(session.look_ahead(draft, k, round_index) for session in self._sessions)

    def close(self) -> None:
        for session in self._sessions:
            session.close()
