"""The deployment matrix is computed: small drafts differ from medium ones, and constants move it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from pipeline.planning.constants import DEFAULT, Constants
from pipeline.planning.gpus import find_gpu
from pipeline.planning.layout import Layout, read_layout
from pipeline.planning.matrix import BATCHES, FAMILIES, GPU_NAMES, Cell, deployment_matrix, family_drafts
from pipeline.planning.model_shape import ModelShape
from pipeline.spec import ROOT, DeploymentSpec

BIG = "meta-llama/Llama-3.1-70B-Instruct"
DRAFTS = FAMILIES["meta-llama/Llama-3"]
ONE_B, THREE_B, EIGHT_B = DRAFTS


@cache
def layout() -> Layout:
    return read_layout(DeploymentSpec.load(ROOT / "build" / "profiles" / "llama-3.1-70b-1b.yaml"))


def matrix(
    drafts: Sequence[str] = DRAFTS,
    gpus: Sequence[str] = GPU_NAMES,
    batches: Sequence[int] = BATCHES,
    constants: Constants = DEFAULT,
) -> tuple[Cell, ...]:
    placements = dict(family_drafts(BIG, layout().placements["target"]))
    chosen = [(draft, placements[draft]) for draft in drafts]
    return deployment_matrix(layout(), chosen, [find_gpu(name) for name in gpus], batches, 2048, 0.7, constants)


def test_small_drafts_and_medium_drafts() -> None:
    """At batch 1: 1B is 10:1 or faster with K of 4 or more; 8B is 2:1 to 7:1, K of 4 or less, and bounded by memory."""
    small, medium = (matrix([draft], batches=(1,)) for draft in (ONE_B, EIGHT_B))
    assert all(cell.ratio >= 10 and cell.best_k >= 4 for cell in small)
    assert all(2 <= cell.ratio <= 7 and cell.best_k <= 4 and cell.bottleneck == "VRAM" for cell in medium)
    assert any(cell.bottleneck == "kernel launches" for cell in small)


def test_larger_drafts_cost_sequences_and_speed() -> None:
    cells = {cell.draft: cell for cell in matrix(gpus=["H200"], batches=(8,))}
    assert cells[ONE_B].sequences > cells[THREE_B].sequences > cells[EIGHT_B].sequences
    assert cells[ONE_B].ratio > cells[THREE_B].ratio > cells[EIGHT_B].ratio
    assert cells[ONE_B].speedup > cells[THREE_B].speedup > cells[EIGHT_B].speedup


def test_every_cell_holds_its_batch_on_the_fewest_gpus() -> None:
    for cell in matrix():
        assert cell.sequences >= cell.batch
        assert cell.sequences <= cell.sequences_alone
        assert cell.gpus & (cell.gpus - 1) == 0 and cell.gpus <= 8


def test_what_no_server_holds_is_left_out() -> None:
    assert matrix(gpus=["L4"], batches=(1024,)) == ()


def test_launches_are_what_makes_small_drafts_slow() -> None:
    """Without the cost per layer the bottleneck is no longer launches, and the draft is faster."""
    before = matrix([ONE_B], ["H200"], (1,))[0]
    after = matrix([ONE_B], ["H200"], (1,), replace(DEFAULT, layer_s=0.0))[0]
    assert before.bottleneck == "kernel launches" and after.bottleneck == "weight reads"
    assert after.ratio > before.ratio


def test_drafts_of_a_family() -> None:
    """Known shapes, small to medium, and none that is half of its target or more."""
    for prefix, drafts in FAMILIES.items():
        sizes = [ModelShape.known(draft).parameters for draft in drafts]
        assert sizes == sorted(sizes)
        assert [name for name, _ in family_drafts(f"{prefix}-x", layout().placements["target"])] == list(drafts)
    small = replace(layout().placements["target"], shape=ModelShape.known(EIGHT_B))
    assert [name for name, _ in family_drafts(EIGHT_B, small)] == [ONE_B, THREE_B]
    assert family_drafts("mistralai/x", small) == ()
