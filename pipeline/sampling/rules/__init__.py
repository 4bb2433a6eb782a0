"""Acceptance rules by name, and which one a request gets."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import InvalidRequestError
from pipeline.sampling.rules.base import AcceptanceRule, Proposal, Randomness, Verdict, compare
from pipeline.sampling.rules.block import BlockRule
from pipeline.sampling.rules.coupled import CoupledRule
from pipeline.sampling.rules.match import MatchRule
from pipeline.sampling.rules.residual import ResidualRule
from pipeline.sampling.rules.token import TokenRule

__all__ = [
    "PREFERENCE",
    "RULES",
    "RULE_AUTO",
    "AcceptanceRule",
    "BlockRule",
    "CoupledRule",
    "MatchRule",
    "Proposal",
    "Randomness",
    "ResidualRule",
    "TokenRule",
    "Verdict",
    "compare",
    "resolve_rule",
]

RULE_AUTO = "auto"

RULES: dict[str, AcceptanceRule] = {rule.name: rule for rule in (BlockRule(), TokenRule(), MatchRule(), CoupledRule())}

PREFERENCE = ("block", "token", "match", "coupled")
"""What "auto" takes, best first, where no seed asks for the same text again."""


def resolve_rule(requested: str, offered: Sequence[str], seeded: bool = False) -> str:
    """The rule that a request or a call gets.

    Args:
        requested: a rule's name, or "auto".
        offered: names that the target can apply.
        seeded: the user gave a seed and expects the same text again: "auto" is then "coupled", where offered.

    Returns:
        The name of one offered rule.

    Raises:
        InvalidRequestError: naming acceptance_rule, its value and what is offered.
    """
    if requested == RULE_AUTO:
        if seeded and CoupledRule.name in offered:
            return CoupledRule.name
        best = next((name for name in PREFERENCE if name in offered), None)
        if best is not None:
            return best
    elif requested in offered:
        return requested
    limit = f"this target offers {', '.join([RULE_AUTO, *offered]) if offered else 'no acceptance rule'}"
    raise InvalidRequestError("acceptance_rule", requested, limit)
