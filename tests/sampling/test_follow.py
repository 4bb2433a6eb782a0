"""The engine's short cut for greedy rows against the rules."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sampling.call import VerifyCall
from pipeline.sampling.params import GREEDY
from pipeline.sampling.rules import RULES
from pipeline.sampling.verify import follow, verify


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.integers(0, 2**32), st.integers(0, 5), st.sampled_from(sorted(RULES)))
def test_following_the_best_tokens_is_what_a_greedy_row_decides(seed: int, width: int, rule: str) -> None:
    """The engine's short cut and the rules agree, with good drafts and bad ones, and ties."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 4, (1, width + 1, 9), generator=generator).float()
    best = logits[0].argmax(-1).tolist()
    right = int(torch.randint(0, width + 1, (1,), generator=generator))
    drafts = (*best[:right], *torch.randint(0, 9, (width - right,), generator=generator).tolist())
    call = VerifyCall(drafts, None, GREEDY, rule, seed)
    assert verify(logits, [call]) == [follow(drafts, best)]
