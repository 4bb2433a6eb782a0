"""Published figures against the model's: what it reproduces, the one row it was set by, and what it predicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pipeline.planning.constants import ACCEPTANCE, DEFAULT, Constants
from pipeline.planning.gpus import find_gpu
from pipeline.planning.model_shape import ModelShape
from pipeline.planning.placement import Placement
from pipeline.planning.roofline import pass_time
from pipeline.planning.speculation import StepCosts, acceptance_for, expected_committed, gpu_costs
from pipeline.step_model_spec import Weights

Kind = Literal["arithmetic", "calibration", "prediction"]
CONTEXT = 1024  # tokens; the sources rarely say, and 1,024 more move none of these rows by over 2 %


@dataclass(frozen=True)
class Row:
    """One published figure.

    Attributes:
        kind: `arithmetic` uses no constant, `calibration` set one, `prediction` was used for none.
        published: as the source has it; `predicted` in the same unit.
        note: what was assumed.
    """

    kind: Kind
    what: str
    unit: str
    published: float
    predicted: float
    source: str
    note: str = ""

    @property
    def error(self) -> float:
        """Relative to the published figure."""
        return self.predicted / self.published - 1


def check(constants: Constants = DEFAULT) -> tuple[Row, ...]:
    """Compute every row."""
    return (*_arithmetic(), _calibration(constants), *_plain(constants), *_speculative(constants))


def _place(model: str, weights: Weights = "float16", tp: int = 1, kv_bytes: int = 2) -> Placement:
    return Placement(ModelShape.known(model), weights, tp, 1, tuple(range(tp)), kv_bytes)


def _arithmetic() -> tuple[Row, ...]:
    model = _place("meta-llama/Llama-3.1-70B")
    ideal = replace(DEFAULT, bandwidth_share=1.0, flops_share=1.0, layer_s=0.0)
    alone = pass_time(model, find_gpu("H100-SXM"), 1, 1, 0, ideal)
    return (
        Row("arithmetic", "Llama-3.1-70B FP16, weights", "GB", 140, model.model_bytes / 1e9, "two bytes a parameter"),
        Row(
            "arithmetic",
            "Llama-3.1-70B FP16, one H100 at 3.35 TB/s, bandwidth alone",
            "tokens/s",
            24,
            1 / alone.total_s,
            "bandwidth over weights",
            "a bound: the weights do not fit one H100",
        ),
    )


def _tokens_s(placement: Placement, gpu: str, constants: Constants) -> float:
    return 1 / pass_time(placement, find_gpu(gpu), 1, 1, CONTEXT, constants).total_s


def _calibration(constants: Constants) -> Row:
    return Row(
        "calibration",
        "Llama-3.1-8B FP16, one H100, batch 1",
        "tokens/s",
        158.34,
        _tokens_s(_place("meta-llama/Llama-3.1-8B"), "H100-SXM", constants),
        "SGLang documentation, speculative decoding, MT-bench",
        "set layer_s",
    )


def _plain(constants: Constants) -> tuple[Row, ...]:
    big = _place("meta-llama/Llama-3.3-70B-Instruct", "fp8", kv_bytes=1)
    coder = _place("Qwen/Qwen2.5-Coder-7B-Instruct")
    return (
        Row(
            "prediction",
            "Llama-3.3-70B FP8, one H200, low batch",
            "tokens/s",
            51.14,
            _tokens_s(big, "H200", constants),
            "NVIDIA technical blog, December 2024",
        ),
        Row(
            "prediction",
            "Llama-3.1-405B FP8, TP4 on H200, low batch",
            "tokens/s",
            33.46,
            _tokens_s(_place("meta-llama/Llama-3.1-405B", "fp8", 4, 1), "H200", constants),
            "NVIDIA technical blog on TensorRT-LLM 0.14",
        ),
        Row(
            "prediction",
            "Qwen2.5-Coder-7B FP16, RTX 4090, batch 1",
            "ms/token",
            15.73,
            1e3 / _tokens_s(coder, "RTX-4090", constants),
            "vLLM pull request 13849",
        ),
        Row(
            "prediction",
            "Llama-3.3-70B FP8, one H100",
            "tokens/s",
            30,
            _tokens_s(big, "H100-SXM", constants),
            "olof.tech (rounded there)",
        ),
    )


def _speculative(constants: Constants) -> tuple[Row, ...]:
    in_process = replace(constants, round_s=0.0)  # these engines make no calls between models
    coder = gpu_costs(
        _place("Qwen/Qwen2.5-Coder-7B-Instruct"),
        _place("Qwen/Qwen2.5-Coder-0.5B-Instruct"),
        find_gpu("RTX-4090"),
        1,
        CONTEXT,
        4,
        in_process,
    )
    big = gpu_costs(
        _place("meta-llama/Llama-3.3-70B-Instruct", "fp8", kv_bytes=1),
        _place("meta-llama/Llama-3.2-1B-Instruct", "fp8", kv_bytes=1),
        find_gpu("H200"),
        1,
        CONTEXT,
        10,
        in_process,
    )
    return (
        Row(
            "prediction",
            "Qwen2.5-Coder-7B + 0.5B FP16, RTX 4090, K = 4",
            "ms/token",
            9.15,
            1e3 * _per_token(coder, 4),
            "vLLM pull request 13849",
            _assumed(coder, 4, 9.15e-3),
        ),
        Row(
            "prediction",
            "Llama-3.3-70B + 3.2-1B FP8, one H200, K = 10",
            "tokens/s",
            181.74,
            1 / _per_token(big, 10),
            "NVIDIA technical blog, December 2024",
            _assumed(big, 10, 1 / 181.74) + "; K is NVIDIA's example's, the blog's is not known",
        ),
    )


def _per_token(costs: StepCosts, k: int) -> float:
    return costs.round_s(k) / expected_committed(k, ACCEPTANCE)


def _assumed(costs: StepCosts, k: int, published_s: float) -> str:
    implied = acceptance_for(costs, k, published_s)
    shown = "none" if implied is None else f"{implied:.2f}"
    return f"acceptance {ACCEPTANCE} assumed, the source gives none; the published figure implies {shown}"
