"""Which weights TensorRT-LLM 1.2 compiles for which GPU.

Source: NVIDIA TensorRT-LLM 1.2, `tensorrt_llm/builder.py`, and the README of its draft-target example.
"""

from __future__ import annotations

from pipeline.step_model_spec import Weights

OLDEST = (8, 0)
OLDEST_FP8 = (8, 9)
NO_INTEGER_FROM, NO_INTEGER_BELOW = (10, 0), (12, 0)


def unsupported(weights: Weights, architecture: str) -> str | None:
    """Why a GPU of this compute capability ("9.0") cannot have an engine of these weights; None where it can."""
    capability = tuple(int(part) for part in architecture.split(".") if part.isdigit())
    if capability < OLDEST:
        return f"engines that verify drafts need compute capability 8.0, it is {architecture}"
    if weights == "fp8" and capability < OLDEST_FP8:
        return f"weights: fp8 needs compute capability 8.9, it is {architecture}; float16 or int8 would do"
    if weights in ("int8", "int4") and NO_INTEGER_FROM <= capability < NO_INTEGER_BELOW:
        return f"weights: {weights} is not compiled for compute capability {architecture}; float16 or fp8 would do"
    return None
