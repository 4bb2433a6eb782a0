"""The deployment spec: one YAML file that names a target, a draft and how to speculate."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from pipeline.errors import EngineError, SpecError
from pipeline.queue_spec import QueueSpec
from pipeline.step_model_spec import StepModelSpec
from pipeline.strict import Strict
from pipeline.tensorrt_spec import RELEASE, TensorRTSpec, check_engine_fields

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_SPEC = ROOT / "build" / "profiles" / "demo.yaml"


ControllerKind = Literal["goodput", "heuristic", "pid", "fixed"]
Role = Literal["target", "draft"]


class TargetSpec(StepModelSpec):
    """The model whose law is served."""

    model: str = Field(min_length=1, description="a local Hugging Face folder, demo:<name>, or a hub id (TensorRT)")


class NgramSpec(Strict):
    """Lookup of the last tokens in the text so far."""

    min_match: int = Field(1, ge=1, le=16, description="shortest match that is offered, in tokens")
    max_match: int = Field(16, ge=1, le=32, description="longest match that is looked for, in tokens")

    @model_validator(mode="after")
    def _ordered(self) -> NgramSpec:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match = {self.min_match} is above max_match = {self.max_match}")
        return self


class DraftSpec(StepModelSpec):
    """The cheap source that proposes."""

    kind: Literal["hybrid", "model", "ngram", "none"] = "hybrid"
    model: str | None = Field(None, description="as target.model; needed by hybrid and model")
    head_tokens: int | None = Field(None, ge=1, description="embedded: keep the most frequent tokens in the LM head")
    sampling: Literal["q", "greedy"] = Field("q", description="draw drafts from q, or take the most probable token")
    ngram: NgramSpec = NgramSpec()

    @property
    def uses_model(self) -> bool:
        return self.kind in ("hybrid", "model")

    @model_validator(mode="after")
    def _model_present(self) -> DraftSpec:
        if self.uses_model and not self.model:
            raise ValueError(f"kind = {self.kind} needs a draft model folder in `model`")
        return self


class LimitsSpec(Strict):
    """Bounds on what is accepted."""

    max_seq_len: int = Field(2048, ge=2, le=1_048_576, description="prompt and output together, in tokens")
    max_draft_len: int = Field(8, ge=0, le=64)
    max_requests: int = Field(32, ge=1, le=1024, description="requests decoded at once")
    max_queue: int = Field(256, ge=0, le=100_000, description="requests that may wait beyond those")


class ControllerSpec(Strict):
    """How K is chosen."""

    kind: ControllerKind = "goodput"
    k: int = Field(4, ge=0, le=64, description="K of `fixed`, first K of `heuristic` and `pid`")
    set_point: float = Field(0.5, gt=0, lt=1, description="share of its drafts that `pid` wants to be accepted")
    burst: int = Field(8, ge=1, le=8, description="plain tokens per target call when K is 0")


class DeadlinesSpec(Strict):
    """How long things may take, in seconds."""

    draft_s: float = Field(10.0, gt=0, allow_inf_nan=False, description="a draft call, before it is abandoned")
    target_s: float = Field(120.0, gt=0, allow_inf_nan=False, description="a target call, before it is abandoned")
    drain_s: int = Field(10, ge=1, le=600, description="what running requests are given when the server stops")


class OtlpSpec(Strict):
    """Where OpenTelemetry spans go."""

    url: str | None = Field(
        None,
        pattern=r"^https?://[^\s,@]+$",
        description="a collector's OTLP/HTTP address, e.g. http://HOST:4318/v1/traces",
    )
    every: int = Field(1, ge=1, description="of so many requests one is traced")


class PortsSpec(Strict):
    """Ports on 127.0.0.1; 0 takes a free one."""

    http: int = Field(8000, ge=0, le=65535)
    grpc: int = Field(8001, ge=0, le=65535)
    metrics: int = Field(8002, ge=0, le=65535)


class DeploymentSpec(Strict):
    """A whole deployment. `load` reads it from YAML; every error names the field."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    engine: Literal["embedded", "tensorrt_llm"] = "embedded"
    dtype: Literal["float16", "float32"] = "float16"
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="embedded: auto takes a GPU where torch finds one"
    )
    tokens_per_block: int = Field(32, ge=1, le=512)
    target: TargetSpec
    draft: DraftSpec
    limits: LimitsSpec = LimitsSpec()
    tensorrt_llm: TensorRTSpec = TensorRTSpec()
    rule: Literal["auto", "token", "block", "coupled", "match"] = "auto"
    controller: ControllerSpec = ControllerSpec()
    deadlines: DeadlinesSpec = DeadlinesSpec()
    queue: QueueSpec = QueueSpec()
    ports: PortsSpec = PortsSpec()
    otlp: OtlpSpec = OtlpSpec()
    speculation: Literal["auto", "off"] | int = Field("auto", description="auto, off or a K, until it is switched")
    draft_ahead: Literal["auto", "on", "off"] = Field(
        "auto", description="draft the next block while one is verified; auto: where each model has GPUs of its own"
    )
    trace: Path | None = Field(None, description="file that every round is appended to; relative: to the checkout")

    @field_validator("speculation", mode="before")
    @classmethod
    def _yaml_off(cls, value: object) -> object:
        """YAML reads a bare `off` as false."""
        if value is True:
            raise ValueError("must be auto, off or a number of draft tokens")
        return "off" if value is False else value

    @field_validator("draft_ahead", mode="before")
    @classmethod
    def _yaml_on(cls, value: object) -> object:
        """YAML reads bare `on` and `off` as true and false."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @field_validator("trace")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else ROOT / value

    @field_validator("tokens_per_block")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError(f"{value} is not a power of two")
        return value

    @model_validator(mode="after")
    def _fits(self) -> DeploymentSpec:
        check_engine_fields(self)
        if isinstance(self.speculation, int) and not 0 <= self.speculation <= self.limits.max_draft_len:
            raise ValueError(
                f"speculation = {self.speculation}: must be auto, off or a number up to limits.max_draft_len = "
                f"{self.limits.max_draft_len}"
            )
        if self.draft_ahead == "on" and not self.draft.uses_model:
            raise ValueError(f"draft_ahead = on: needs a draft model, draft.kind is {self.draft.kind}")
        if self.engine == "embedded":
            longest = self.limits.max_seq_len + self.limits.max_draft_len + 1  # what admission asks for
            for role in self.model_roles:
                blocks = self.step_model(role).kv_blocks
                if blocks * self.tokens_per_block < longest:
                    raise ValueError(
                        f"{role}.kv_blocks = {blocks} blocks hold {blocks * self.tokens_per_block} tokens; one request "
                        f"of limits.max_seq_len + limits.max_draft_len + 1 = {longest} tokens would not fit"
                    )
        return self

    def require_embedded(self) -> None:
        """Refuse what runs in this process for engines that only Triton can run.

        Raises:
            EngineError: with what to do instead.
        """
        if self.engine != "embedded":
            raise EngineError(
                f"engine: {self.engine} needs a GPU and TensorRT-LLM {RELEASE}, and is served by Triton "
                f"(`make serve`, inside {self.tensorrt_llm.container}); this command runs engine: embedded"
            )

    @property
    def model_roles(self) -> tuple[Role, ...]:
        """The roles that have an engine."""
        return ("target", "draft") if self.draft.uses_model else ("target",)

    def step_model(self, role: Role) -> TargetSpec | DraftSpec:
        return self.target if role == "target" else self.draft

    @property
    def shares_gpu(self) -> bool:
        """Whether a GPU holds both models."""
        return self.draft.uses_model and not set(self.target.device_ids).isdisjoint(self.draft.device_ids)

    @property
    def drafts_ahead(self) -> bool:
        """Whether drafts are made ahead; on shared cores, or a shared GPU, they slow the verify that they wait for."""
        if self.draft_ahead == "auto":
            return self.engine == "tensorrt_llm" and self.draft.uses_model and not self.shares_gpu
        return self.draft_ahead == "on"

    @property
    def draft_calls(self) -> int:
        """Calls of the draft that a request has in flight at most: its own, and one that it gave up."""
        return 2 if self.drafts_ahead else 1

    @property
    def engines_dir(self) -> Path:
        """Where `make engines` writes: engines/<name>/{target,draft}."""
        return ROOT / "engines" / self.name

    def engine_dir(self, role: Role) -> Path:
        return self.engines_dir / role

    @classmethod
    def load(cls, path: str | Path) -> DeploymentSpec:
        """Read and validate a spec.

        Raises:
            SpecError: the file is missing, is not YAML, or a field is wrong; names the nearest known key.
        """
        path = Path(path)
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SpecError(f"spec {path} cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise SpecError(f"spec {path} is not valid YAML: {' '.join(str(error).split())}") from error
        if not isinstance(data, dict):
            raise SpecError(f"spec {path} must be a YAML mapping, found {type(data).__name__}")
        return cls.check(data, f"spec {path}: ")

    @classmethod
    def check(cls, data: dict[str, Any], where: str = "") -> DeploymentSpec:
        """Validate what a spec would hold.

        Raises:
            SpecError: beginning with `where`.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise SpecError(where + "; ".join(_explain(cls, item) for item in error.errors())) from error


def _explain(model: type[BaseModel], item: Any) -> str:
    location = [str(part) for part in item["loc"]]
    field = ".".join(location) or "spec"
    if item["type"] == "extra_forbidden":
        owner: Any = model
        for part in location[:-1]:
            owner = owner.model_fields[part].annotation
        known = list(owner.model_fields)
        nearest = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.0)
        return f"{field}: unknown key; nearest known key: {nearest[0]}"
    message = str(item["msg"]).removeprefix("Value error, ")
    value = item.get("input")
    shown = "" if isinstance(value, dict) or item["type"] == "missing" else f" (got {value!r})"
    return f"{field}: {message}{shown}"
