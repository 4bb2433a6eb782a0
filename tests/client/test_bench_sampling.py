"""The command that measures what sampling costs runs, and its numbers are of what it says."""

from __future__ import annotations

import pytest
import torch

from pipeline.client import bench_sampling as module


def test_every_option_set_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VOCABULARIES", (700,))
    threads = torch.get_num_threads()
    costs = list(module.sampling_costs(repeats=1))
    assert [cost.options for cost in costs] == list(module.OPTION_SETS)
    assert all(cost.vocab == 700 and cost.seconds > 0 and cost.reads > 0 and cost.share is None for cost in costs)
    assert torch.get_num_threads() == threads
