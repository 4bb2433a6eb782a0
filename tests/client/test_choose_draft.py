"""Choosing a draft: what may be named, and the verdict on known ratios."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pipeline.client import choose_draft
from pipeline.client.choose_draft import Contender, Sample, judge, parse_controller
from pipeline.client.draft_candidates import engines_name, own_candidates, parse_candidate
from pipeline.client.ratios import geomean
from pipeline.errors import InvalidRequestError, SpecDecodeError, SpecError
from pipeline.spec import DEFAULT_SPEC, ControllerSpec, DeploymentSpec, DraftSpec

OWN = DraftSpec(kind="hybrid", model="own/draft", head_tokens=4096)


@pytest.mark.parametrize(
    ("text", "kind", "model", "head"),
    [
        ("ngram", "ngram", None, None),
        ("hybrid", "hybrid", "own/draft", 4096),
        ("model", "model", "own/draft", 4096),
        ("model:own/draft", "model", "own/draft", 4096),
        ("model:other/draft", "model", "other/draft", None),
        ("some/folder", "hybrid", "some/folder", None),
        ("C:folder", "hybrid", "C:folder", None),
    ],
)
def test_drafts_by_name(text: str, kind: str, model: str | None, head: int | None) -> None:
    """The spec's own model keeps its reduced head; another has one of its own size."""
    draft = parse_candidate(text, OWN).draft
    assert (draft.kind, draft.model, draft.head_tokens) == (kind, model, head)
    assert draft.kv_blocks == OWN.kv_blocks


@pytest.mark.parametrize(
    ("text", "own", "message"),
    [("hybrid", DraftSpec(kind="none"), "names no draft model; write hybrid:FOLDER"), ("ngram:x", OWN, "no folder")],
)
def test_drafts_that_there_are_not(text: str, own: DraftSpec, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_candidate(text, own)


def test_what_a_spec_offers_by_itself() -> None:
    assert [candidate.name for candidate in own_candidates(OWN)] == ["hybrid", "model", "ngram"]
    assert [candidate.name for candidate in own_candidates(DraftSpec(kind="none"))] == ["ngram"]


def test_engines_of_two_folders_are_apart() -> None:
    """Also of the same last name, and of names that no spec may have."""
    names = {engines_name("demo", folder) for folder in ("a/draft", "b/draft", "a/draft with ü/", "x" * 300)}
    assert len(names) == 4
    for name in names:
        DeploymentSpec.check({**DeploymentSpec.load(DEFAULT_SPEC).model_dump(), "name": name})


def test_controllers_by_name() -> None:
    spec = DeploymentSpec.load(DEFAULT_SPEC)
    assert parse_controller("fixed=3", spec) == ("fixed=3", ControllerSpec(kind="fixed", k=3))
    assert parse_controller("pid", spec)[1].kind == "pid"
    for text, message in (("best", "controller.kind"), ("fixed=x", r"controller\.k"), ("fixed=99", r"controller\.k")):
        with pytest.raises(SpecError, match=message):
            parse_controller(text, spec)


def contender(name: str, ratios: list[float]) -> Contender:
    samples = (Sample("code" if i % 2 else "chat", ratio, 30, 10, 20, 15) for i, ratio in enumerate(ratios))
    return Contender(name, "goodput", tuple(samples))


def noisy(mean: float, count: int, seed: int, spread: float = 0.2) -> list[float]:
    rng = random.Random(seed)
    return [mean * rng.lognormvariate(0, spread) for _ in range(count)]


def test_the_better_one_is_taken() -> None:
    """Clearly better, with its interval; a twin is not called slower, a poor one is."""
    good = noisy(1.6, 40, 1)
    verdict = judge([contender("poor", noisy(1.1, 40, 2)), contender("good", good), contender("twin", good[::-1])])
    assert verdict.best.draft in ("good", "twin") and verdict.pays
    assert verdict.lower < geomean(good) < verdict.upper and verdict.lower > 1.45 and verdict.upper < 1.75
    assert len(verdict.equals) == 1 and "poor" not in verdict.equals[0]


def test_nothing_is_taken_where_nothing_pays() -> None:
    """A mean above 1 that chance explains is no gain."""
    assert not judge([contender("a", noisy(1.02, 10, 3, 0.3)), contender("b", noisy(0.8, 10, 4))]).pays


@settings(derandomize=True, deadline=None, max_examples=30)
@given(st.lists(st.floats(0.2, 5.0), min_size=2, max_size=20), st.floats(1.05, 3.0))
def test_pairs_decide_not_levels(ratios: list[float], factor: float) -> None:
    """Always so much faster on the same prompt is clear, however much prompts differ among themselves."""
    verdict = judge([contender("slow", ratios), contender("fast", [ratio * factor for ratio in ratios])])
    assert verdict.best.draft == "fast" and verdict.equals == ()


def test_sums() -> None:
    one = contender("x", [1.0, 4.0])
    assert (one.acceptance, one.tokens_per_round) == (0.75, 3.0)
    assert one.ratio() == pytest.approx(2.0)
    assert (one.ratio("chat"), one.ratio("code")) == (pytest.approx(1.0), pytest.approx(4.0))


def test_bad_options_are_found_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine is read or built for a mistake in the last option."""
    monkeypatch.setattr(choose_draft, "prepare", lambda *_: pytest.fail("engines were touched"))
    spec, console = DeploymentSpec.load(DEFAULT_SPEC), Console(file=io.StringIO())
    empty = tmp_path / "p.jsonl"
    empty.write_text(json.dumps({"kind": "x"}))
    cases: list[tuple[list[str], list[str], Path | None, float, type[SpecDecodeError]]] = [
        (["ngram:x"], [], None, 0.0, SpecError),
        ([], ["none"], None, 0.0, SpecError),
        ([], [], empty, 0.0, SpecError),
        ([], [], None, -1.0, InvalidRequestError),
    ]
    for drafts, controllers, prompts, temperature, error in cases:
        with pytest.raises(error):
            choose_draft.run_choose_draft(spec, console, drafts, controllers, prompts, 8, temperature, None)
