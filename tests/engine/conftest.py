"""Models that the engine's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tiny_models import TinyModel, Watched, make_decoder, make_tiny, watch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Products this small only lose by being split."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny("llama3-rope", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def other_tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A draft that agrees with `tiny` now and then."""
    return make_tiny("llama3-rope", tmp_path_factory.mktemp("other"), error=0.02)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch finds no CUDA device here")
ALL_KINDS = ("compiled", "paged", "paged-eager", "paged-away", pytest.param("paged-cuda", marks=GPU))


@pytest.fixture(params=ALL_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Every decoder, on every device that is here."""
    found: str = request.param
    return found


@pytest.fixture(params=[kind for kind in ALL_KINDS if kind not in ("paged", "paged-eager")])
def target(request: pytest.FixtureRequest, tiny: TinyModel) -> Iterator[Watched]:
    watched = watch(make_decoder(tiny.folder, blocks=48, kind=request.param))
    yield watched
    watched.free.set()
    watched.model.close()
    watched.check_idle()
