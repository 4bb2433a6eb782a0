"""The manifest beside an engine: what it was made from, what it can do, and what its steps cost."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import EngineError

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Frozen):
    """Sizes fixed when the engine was built."""

    max_seq_len: int  # tokens, prompt and output together, drafts of a verify not counted
    max_draft_len: int  # drafts one verify may carry; 0 for a draft engine
    max_requests: int  # calls running at once
    kv_blocks: int
    tokens_per_block: int

    @property
    def kv_tokens(self) -> int:
        """Capacity of the KV pool, in tokens."""
        return self.kv_blocks * self.tokens_per_block


class Capabilities(_Frozen):
    """What an engine can do; the orchestrator reads these and never asks which engine it talks to."""

    rules: tuple[str, ...]  # acceptance rules, best first
    draft_options: tuple[str, ...]  # sampling options that a draft may be sent
    options: tuple[str, ...] = ("temperature", "top_k", "top_p")  # sampling options that a target may be sent
    generation_logits: Literal["raw", "log_law"]  # before or after the processors
    log_probs: bool
    drops_drafts: bool  # may verify fewer drafts than it was sent
    deterministic: bool  # bits do not depend on batch neighbours
    # Where an engine of NVIDIA's means its tensors differently (pipeline/serving/dialect.py):
    own_tensors: bool = True  # takes and sends this project's own tensors and parameters, too
    processors: Literal["penalties_first", "temperature_first"] = "penalties_first"  # which of them act first
    one_hot_logits: bool = False  # where the choice is drawn, a one-hot q must be sent as draft_logits, too
    max_top_k: int | None = None  # a larger top_k would be cut silently


class CostTable(_Frozen):
    """Seconds per forward pass, by new tokens of one row."""

    context_tokens: int
    seconds_by_tokens: dict[int, float]
    measured: bool = True  # when the engine was built; False: estimated from its size, rounds correct it
    measured_on: str | None = None  # cpu, or the GPU's name; None where nobody has said

    def seconds(self, tokens: int) -> float:
        """Linear interpolation between measured sizes; beyond the last, in proportion."""
        known = sorted(self.seconds_by_tokens)
        if tokens <= known[0]:
            return self.seconds_by_tokens[known[0]]
        for low, high in pairwise(known):
            if tokens <= high:
                share = (tokens - low) / (high - low)
                return (1 - share) * self.seconds_by_tokens[low] + share * self.seconds_by_tokens[high]
        return self.seconds_by_tokens[known[-1]] * tokens / known[-1]


class TensorRTFacts(_Frozen):
    """What a compiled engine was made with, and which GPU it is for."""

    engine_path: str  # config.json and rank*.engine; relative to the manifest's folder, or absolute
    tensorrt_llm: str  # version that compiled it
    tensorrt: str  # "unknown" where the engine came from elsewhere
    compute_capability: str  # such as "9.0"; "unknown" likewise
    tensor_parallel: int
    pipeline_parallel: int
    max_num_tokens: int
    quantization: str | None  # as TensorRT-LLM names it; None: 16 bits
    inputs_sha256: str  # over all that a build depends on: unchanged, nothing is built; "" from elsewhere
    build_arguments: tuple[str, ...]  # of trtllm-build; empty from elsewhere


class Manifest(_Frozen):
    """Everything about an engine that is known without loading it."""

    version: int
    role: Literal["target", "draft"]
    engine: Literal["embedded", "tensorrt_llm"]
    model: str  # what the spec named
    source_sha256: str  # of the weights and configuration it was made from
    dtype: Literal["float16", "float32"]
    device: Literal["cpu", "cuda"] | None = None  # that an embedded engine runs on; None: cpu, or NVIDIA's to say
    vocab_size: int  # tokens the tokenizer knows
    padded_vocab_size: int  # width of the logits
    engine_vocab_size: int | None = None  # columns that the engine can draw, the rest is padding; None: all
    end_id: int | None
    files: dict[str, str]  # file name -> sha256
    limits: Limits
    capabilities: Capabilities
    cost: CostTable
    built_with: dict[str, str]  # library versions
    tensorrt: TensorRTFacts | None = None  # of engine: tensorrt_llm

    def write(self, folder: Path) -> None:
        (folder / MANIFEST_NAME).write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read `manifest.json` of an engine folder.

        Raises:
            EngineError: the folder or the manifest is missing or malformed.
        """
        path = folder / MANIFEST_NAME
        if not path.is_file():
            raise EngineError(f"no engine in {folder}: {MANIFEST_NAME} is missing; run `make engines` first")
        try:
            manifest = cls.model_validate_json(path.read_text())
        except ValidationError as error:
            raise EngineError(f"{path} is not a manifest of this version: {error.errors()[0]['msg']}") from error
        if manifest.version != MANIFEST_VERSION:
            raise EngineError(
                f"{path}: manifest version {manifest.version}, this release reads {MANIFEST_VERSION}; "
                "run `make engines` again"
            )
        return manifest

    def engine_path(self, folder: Path) -> Path:
        """Where the compiled engine lies, given the manifest's folder.

        Raises:
            EngineError: this is not a TensorRT engine's manifest.
        """
        if self.tensorrt is None:
            raise EngineError(f"{folder / MANIFEST_NAME} does not describe a TensorRT engine")
        return folder / self.tensorrt.engine_path  # an absolute one replaces the folder

    def verify_files(self, folder: Path) -> None:
        """Compare every file with its recorded hash.

        Raises:
            EngineError: naming the file that is missing, truncated or changed.
        """
        for name, expected in self.files.items():
            path = folder / name
            if not path.is_file():
                raise EngineError(f"engine file {path} is missing; run `make engines` again")
            found = sha256_file(path)
            if found != expected:
                raise EngineError(
                    f"engine file {path} is damaged ({path.stat().st_size} bytes, sha256 {found[:12]}..., "
                    f"expected {expected[:12]}...); run `make engines` again"
                )


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
