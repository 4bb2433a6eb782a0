"""Two engines in one process compute at the same time."""

from __future__ import annotations

import threading

from tiny_models import TinyModel, make_decoder, watch

WAIT_S = 20.0


def test_passes_of_draft_and_target_overlap(tiny: TinyModel, other_tiny: TinyModel) -> None:
    """Inside each of their passes they wait for each other: one after the other, neither would ever end."""
    engines = [watch(make_decoder(model.folder, blocks=48)) for model in (tiny, other_tiny)]
    barrier = threading.Barrier(2)
    for engine in engines:
        engine.spoil = lambda batch, logits: barrier.wait(WAIT_S) and None
    futures = [engine.model.submit(engine.request((3, 4, 5), 6)) for engine in engines]
    for future, model in zip(futures, (tiny, other_tiny), strict=True):
        assert future.result(2 * WAIT_S).output_ids == model.greedy((3, 4, 5), 6)
    for engine in engines:
        assert len(engine.passes) == 6
        engine.model.close()
        engine.check_idle()
