"""What a TensorRT-LLM engine folder says about itself: its `config.json`.

Written by `trtllm-build` 1.2 as {version, pretrained_config, build_config}: NVIDIA TensorRT-LLM,
`tensorrt_llm/builder.py`, `EngineConfig.to_dict`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import EngineError
from pipeline.spec import DeploymentSpec, Role

CONFIG_NAME = "config.json"
DRAFT_TOKENS_EXTERNAL = 2  # `SpeculativeDecodingMode` is written as the number of its flag
SUPPORTED = "1.2."


@dataclass(frozen=True)
class TensorRTEngineConfig:
    """Sizes and switches that were fixed when the engine was compiled.

    Attributes:
        vocab_size: of the weights, padding included.
        padded_vocab_size: width of the logits: vocab_size rounded up to a multiple of tensor_parallel.
        max_seq_len: tokens of prompt, output and drafts together.
        max_batch_size: requests of one iteration.
        max_num_tokens: packed tokens of one iteration.
        verifies_drafts: compiled with `--speculative_decoding_mode draft_tokens_external`.
    """

    version: str
    architecture: str
    dtype: str
    num_layers: int
    vocab_size: int
    tensor_parallel: int
    pipeline_parallel: int
    quantization: str | None
    max_seq_len: int
    max_batch_size: int
    max_num_tokens: int
    max_beam_width: int
    max_draft_len: int
    verifies_drafts: bool
    gathers_generation_logits: bool
    paged_kv: bool
    paged_context_fmha: bool
    tokens_per_block: int
    logits_dtype: str = "float32"

    @property
    def world_size(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // self.tensor_parallel) * self.tensor_parallel

    @classmethod
    def read(cls, folder: Path) -> TensorRTEngineConfig:
        """Read `config.json` and see that every rank's engine is there.

        Raises:
            EngineError: a file is missing, or the configuration is not one of TensorRT-LLM.
        """
        path = folder / CONFIG_NAME
        try:
            data = json.loads(path.read_text())
        except OSError as error:
            raise EngineError(f"engine folder {folder}: {CONFIG_NAME} cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise EngineError(f"engine folder {folder}: {CONFIG_NAME} is not valid JSON ({error})") from error
        try:
            config = cls._from_dict(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(
                f"{path} is not the configuration of a TensorRT-LLM engine ({type(error).__name__}: {error})"
            ) from error
        for rank in range(config.world_size):
            if not (folder / engine_name(rank)).is_file():
                raise EngineError(f"engine folder {folder}: {engine_name(rank)} is missing")
        return config

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> TensorRTEngineConfig:
        model, build = data["pretrained_config"], data["build_config"]
        plugins, mapping = build["plugin_config"], model.get("mapping") or {}
        mode = build.get("speculative_decoding_mode", 1)
        return cls(
            version=str(data["version"]),
            architecture=str(model["architecture"]),
            dtype=str(model["dtype"]),
            num_layers=int(model["num_hidden_layers"]),
            vocab_size=int(model["vocab_size"]),
            tensor_parallel=int(mapping.get("tp_size", 1)),
            pipeline_parallel=int(mapping.get("pp_size", 1)),
            quantization=(model.get("quantization") or {}).get("quant_algo"),
            max_seq_len=int(build["max_seq_len"]),
            max_batch_size=int(build["max_batch_size"]),
            max_num_tokens=int(build["max_num_tokens"]),
            max_beam_width=int(build.get("max_beam_width", 1)),
            max_draft_len=int(build.get("max_draft_len", 0)),
            verifies_drafts=mode == DRAFT_TOKENS_EXTERNAL or str(mode).lower().endswith("draft_tokens_external"),
            gathers_generation_logits=bool(build.get("gather_generation_logits", False)),
            paged_kv=str(build.get("kv_cache_type") or "PAGED").upper().endswith("PAGED"),
            paged_context_fmha=bool(plugins.get("use_paged_context_fmha", False)),
            tokens_per_block=int(plugins["tokens_per_block"]),
            logits_dtype=str(model.get("logits_dtype", "float32")),
        )

    def require_fit(self, spec: DeploymentSpec, role: Role, folder: Path) -> None:
        """Compare with what the deployment needs.

        Raises:
            EngineError: with every way in which the engine does not fit.
        """
        found = list(self.misfits(spec, role))
        if found:
            raise EngineError(
                f"{role} engine {folder} does not fit the spec: {'; '.join(found)}; compile it again "
                "(`make engines DRY_RUN=1` prints the command)"
            )

    def misfits(self, spec: DeploymentSpec, role: Role) -> Iterator[str]:
        """Every way in which the engine does not fit, a line each."""
        part, limits = spec.step_model(role), spec.limits
        if not self.version.startswith(SUPPORTED):
            yield f"it was compiled by TensorRT-LLM {self.version}, this release serves {SUPPORTED}x"
        if self.dtype != spec.dtype:
            yield f"dtype is {self.dtype}, the spec has {spec.dtype}"
        if self.logits_dtype != "float32":
            yield f"logits_dtype is {self.logits_dtype}, laws cross between the models in float32"
        for field, found, wanted in (
            ("tensor_parallel", self.tensor_parallel, part.tensor_parallel),
            ("pipeline_parallel", self.pipeline_parallel, part.pipeline_parallel),
        ):
            if found != wanted:
                yield f"{role}.{field} = {wanted}, the engine has {found}"
        if self.tokens_per_block != spec.tokens_per_block:
            yield f"tokens_per_block = {spec.tokens_per_block}, the engine has {self.tokens_per_block}"
        if self.max_batch_size < limits.max_requests:
            yield f"limits.max_requests = {limits.max_requests}, the engine's max_batch_size is {self.max_batch_size}"
        if not self.paged_kv:
            yield "its KV cache is not paged"
        if not self.paged_context_fmha:
            yield "use_paged_context_fmha is off: without KV reuse every round would be a full prefill"
        if self.max_beam_width != 1:
            yield f"max_beam_width is {self.max_beam_width}, drafts need 1"
        if role == "target":
            yield from self._target_misfits(spec)
        elif spec.draft.sampling == "q" and not self.gathers_generation_logits:
            yield "draft.sampling = q needs gather_generation_logits; it is off"

    def _target_misfits(self, spec: DeploymentSpec) -> Iterator[str]:
        limits = spec.limits
        # An engine that runs out of room returns fewer tokens, which would be taken for the end of the text.
        if self.max_seq_len < limits.max_seq_len + limits.max_draft_len:
            yield (
                f"limits.max_seq_len + limits.max_draft_len = {limits.max_seq_len + limits.max_draft_len}, the engine "
                f"holds {self.max_seq_len} tokens, drafts included"
            )
        if spec.draft.kind == "none":
            return
        if not self.verifies_drafts:
            yield "speculative_decoding_mode is not draft_tokens_external"
        if self.max_draft_len < limits.max_draft_len:
            yield f"limits.max_draft_len = {limits.max_draft_len}, the engine's max_draft_len is {self.max_draft_len}"


def engine_name(rank: int) -> str:
    """File name of one rank's engine."""
    return f"rank{rank}.engine"
