"""Rows shared among threads: the same decisions, and no error lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from pipeline.sampling import row_team as module
from pipeline.sampling.call import VerifyCall
from pipeline.sampling.row_team import RowTeam
from pipeline.sampling.verify import sample, verify

from .test_verify import mixed_batch


@pytest.fixture(params=[1, 2, 3, 64])
def team(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[RowTeam]:
    monkeypatch.setattr(module, "WORTH", 1)
    team = RowTeam(request.param)
    yield team
    team.close()


@pytest.mark.parametrize("seed", range(3))
def test_threads_change_no_decision(team: RowTeam, seed: int) -> None:
    with torch.inference_mode():
        logits, calls = mixed_batch(seed)
        assert team.verify(logits.clone(), calls, overwrite=True) == verify(logits, calls)
        plain = logits[:, 0].contiguous()
        assert team.sample(plain.clone(), calls, overwrite=True) == sample(plain, calls)


def test_one_row_needs_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadPoolExecutor, "submit", lambda *_: pytest.fail("a helper was asked"))
    logits, calls = mixed_batch(0)
    team = RowTeam(2)
    assert team.verify(logits, calls) == verify(logits, calls), "too little to share"
    monkeypatch.setattr(module, "WORTH", 1)
    assert team.verify(logits[:1], calls[:1]) == verify(logits[:1], calls[:1])


@pytest.mark.parametrize("own", [True, False])
def test_an_error_waits_for_the_other_shares(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    monkeypatch.setattr(module, "WORTH", 1)
    logits, calls = mixed_batch(0)
    here, failed, finished = threading.get_ident(), threading.Event(), threading.Event()

    def share(part: Tensor, calls: list[VerifyCall], overwrite: bool) -> list[int]:
        if (threading.get_ident() == here) == own:
            failed.set()
            raise ValueError("planted")
        assert failed.wait(10)
        finished.set()
        return [0] * len(calls)

    monkeypatch.setattr(module, "verify", share)
    team = RowTeam(2)
    with pytest.raises(ValueError, match="planted"):
        team.verify(logits, calls)
    assert finished.is_set()
    team.close()
