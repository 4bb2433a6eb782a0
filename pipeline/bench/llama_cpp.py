"""llama.cpp on the same weights with the same number of threads, through the optional package xllamacpp."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.bench.contest import Asked, Decode
from pipeline.bench.gguf_writer import write_gguf

PACKAGE = "xllamacpp"
HOW = 'llama.cpp is not measured: the optional package xllamacpp is missing; install it with: pip install -e ".[bench]"'
DRAFT_TOKENS = (1, 2, 3)
PLAIN = "llama.cpp F16"
CONTEXT = 2048
QUIET = 0


def is_installed() -> bool:
    """Whether the optional package is there; `HOW` says how to get it."""
    return find_spec(PACKAGE) is not None


def speculative_name(k: int) -> str:
    """Of the contestant whose draft proposes at most k tokens."""
    return f"{PLAIN} (same draft, {k})"


class LlamaCpp(AbstractContextManager["LlamaCpp"]):
    """llama.cpp servers in this process, one per way of decoding, each with a cache of its own.

    Args:
        target, draft: GGUF files; without a draft plain decoding is measured alone.
        threads: of a pass.
        max_tokens: decoded, exactly.
        tick: told what is loaded.
    """

    def __init__(
        self,
        target: Path,
        draft: Path | None,
        threads: int,
        max_tokens: int,
        tick: Callable[[str], None],
    ) -> None:
        self._library: Any = import_module(PACKAGE)
        self._threads = threads
        self._max_tokens = max_tokens
        self._target, self._draft = target, draft
        tick("loading llama.cpp")
        self._servers = {PLAIN: self._server(None)}
        if draft is not None:
            self._servers |= {speculative_name(k): self._server(k) for k in DRAFT_TOKENS}

    def __exit__(self, *_: object) -> None:
        self._servers.clear()
        gc.collect()  # its servers end with their objects

    @property
    def decoders(self) -> dict[str, Decode]:
        """Contestants by name."""
        return {name: self._decoder(server) for name, server in self._servers.items()}

    def _decoder(self, server: Any) -> Decode:
        def decode(asked: Asked) -> int:
            return int(self._ask(server, asked.text)["usage"]["completion_tokens"])

        return decode

    def _ask(self, server: Any, prompt: str) -> Any:
        greedy = {"temperature": 0.0, "top_k": 1}
        return server.handle_completions(
            {"prompt": prompt, "n_predict": self._max_tokens, "ignore_eos": True, "cache_prompt": True, **greedy}
        )

    def _server(self, k: int | None) -> Any:
        params = self._library.CommonParams()
        params.model.path = str(self._target)
        params.n_ctx = CONTEXT
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.verbosity = QUIET
        params.ui = False
        self._limit(params)
        if k is not None:
            draft = params.speculative.draft
            draft.mparams.path = str(self._draft)
            draft.n_max = k
            draft.n_gpu_layers = 0
            self._limit(draft)
            params.speculative.types = [self._library.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        return self._library.Server(params)

    def _limit(self, params: Any) -> None:
        params.cpuparams.n_threads = self._threads
        params.cpuparams_batch.n_threads = self._threads


def gguf_files(target: Path, draft: Path | None, cache: Path) -> tuple[Path, Path | None]:
    """The models as F16 GGUF, written where they are not there yet.

    Args:
        target: Hugging Face folder of the target.
        draft: that of the draft, which may share the target's embedding.
        cache: folder of the GGUF files.

    Raises:
        SpecError: a model that cannot be written as GGUF here.
    """
    draft_file = None if draft is None else _gguf(draft, target, cache, target)
    return _gguf(target, target, cache, None), draft_file


def _gguf(model: Path, tokenizer: Path, cache: Path, embedding: Path | None) -> Path:
    """The GGUF of a model folder, written where there is none that is younger than its weights."""
    path = cache / f"{model.name}-f16.gguf"
    weights = model / "model.safetensors"
    if not path.is_file() or path.stat().st_mtime < weights.stat().st_mtime:
        write_gguf(model, tokenizer, path, embedding)
    return path
