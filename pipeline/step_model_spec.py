"""What the spec says about either model: where its engine runs and how large it is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline.strict import Strict

Weights = Literal["float16", "fp8", "int8", "int4"]


class StepModelSpec(Strict):
    """Fields that target and draft share. `pipeline/tensorrt_spec.py` says which engine takes which."""

    kv_blocks: int = Field(256, ge=2, le=1_000_000, description="embedded: blocks of the KV pool")
    threads: int = Field(0, ge=0, le=1024, description="embedded: compute threads; 0 takes every core")
    tensor_parallel: int = Field(1, ge=1, le=64, description="GPUs that share every layer")
    pipeline_parallel: int = Field(1, ge=1, le=64, description="GPUs that share the layers out")
    weights: Weights = Field("float16", description="what the weights are stored in; activations stay in dtype")
    gpus: tuple[Annotated[int, Field(ge=0, le=1023)], ...] | None = Field(
        None, description="device ids; absent: the first tensor_parallel x pipeline_parallel"
    )
    kv_fraction: float | None = Field(
        None, gt=0, lt=1, allow_inf_nan=False, description="share of the memory left free that the KV pool takes"
    )
    kv_tokens: int | None = Field(None, ge=1, description="bound on the KV pool, in tokens; absent: kv_fraction alone")
    engine_dir: str | None = Field(None, min_length=1, description="a compiled engine from elsewhere; nothing is built")

    @property
    def world_size(self) -> int:
        """Ranks, each on a GPU of its own."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def device_ids(self) -> tuple[int, ...]:
        """The GPU of each rank."""
        return tuple(range(self.world_size)) if self.gpus is None else self.gpus

    @model_validator(mode="after")
    def _a_gpu_for_each_rank(self) -> StepModelSpec:
        if self.gpus is not None and (len(self.gpus) != self.world_size or len(set(self.gpus)) != len(self.gpus)):
            raise ValueError(
                f"gpus = {list(self.gpus)} must be {self.world_size} distinct device ids "
                f"(tensor_parallel {self.tensor_parallel} x pipeline_parallel {self.pipeline_parallel})"
            )
        return self
