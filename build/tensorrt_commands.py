"""The commands that make one TensorRT engine: convert or quantise the checkpoint, then compile it.

Flags: TensorRT-LLM 1.2, `tensorrt_llm/commands/build.py`, `tensorrt_llm/plugin/plugin.py`,
`examples/models/core/*/convert_checkpoint.py`, `examples/quantization/quantize.py`. The installed programs are asked
whether they know them before anything is started.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from tensorrt_weights import FAMILIES

from pipeline.planning.model_shape import ModelShape
from pipeline.spec import ROOT, DeploymentSpec, Role

CALIBRATION_SAMPLES = 512
TIMING_CACHE = "timing.cache"
WORKERS = "--workers"


@dataclass(frozen=True)
class EnginePaths:
    """Where the parts of one engine lie.

    Attributes:
        checkpoint: TensorRT-LLM's own format: config.json, rank*.safetensors.
        engine: config.json, rank*.engine.
        timing_cache: shared by all engines of a deployment; kernels that were timed once are not timed again.
    """

    source: Path
    checkpoint: Path
    engine: Path
    timing_cache: Path

    @classmethod
    def of(cls, spec: DeploymentSpec, role: Role, source: Path, engine: Path) -> EnginePaths:
        return cls(source, checkpoint_dir(spec, role), engine, spec.engines_dir / TIMING_CACHE)


def checkpoint_dir(spec: DeploymentSpec, role: Role) -> Path:
    """Where the converted weights of a role are kept."""
    chosen = spec.tensorrt_llm.checkpoint_dir
    if chosen is None:
        return spec.engines_dir / "checkpoints" / role
    return ROOT / Path(chosen).expanduser() / spec.name / role  # an absolute one replaces ROOT


def convert_script(spec: DeploymentSpec, role: Role, architecture: str) -> Path:
    """The script that makes a checkpoint: FP8 is calibrated by quantize.py, the rest is converted."""
    examples = Path(spec.tensorrt_llm.examples_dir)
    if spec.step_model(role).weights == "fp8":
        return examples / "quantization" / "quantize.py"
    return examples / "models" / "core" / FAMILIES[architecture] / "convert_checkpoint.py"


def convert_arguments(spec: DeploymentSpec, role: Role) -> tuple[str, ...]:
    """Arguments of that script, without the folders."""
    part = spec.step_model(role)
    parallel = ("--tp_size", str(part.tensor_parallel), "--pp_size", str(part.pipeline_parallel))
    if part.weights == "fp8":
        cache = ("--kv_cache_dtype", "fp8") if spec.tensorrt_llm.kv_cache_dtype == "fp8" else ()
        return (
            *("--dtype", spec.dtype),
            *("--qformat", "fp8"),
            *cache,
            *("--calib_size", str(CALIBRATION_SAMPLES)),
            *parallel,
        )
    weight_only = ("--use_weight_only", "--weight_only_precision", part.weights) if part.weights != "float16" else ()
    return ("--dtype", spec.dtype, *parallel, WORKERS, str(_workers(spec, role)), *weight_only)


def build_arguments(spec: DeploymentSpec, role: Role, shape: ModelShape) -> tuple[str, ...]:
    """Arguments of trtllm-build for a role, without the folders.

    Both engines need a paged KV cache and paged context attention: a verify is a request of its own, which takes over
    the KV of the last one by block reuse. Only the target verifies; only the draft gives its logits away.
    """
    options, limits, part = spec.tensorrt_llm, spec.limits, spec.step_model(role)
    verifies = role == "target" and spec.draft.kind != "none"
    # trtllm-build adds max_draft_len to the target's by itself; the draft must reach as far.
    longest = limits.max_seq_len
    if role == "draft":
        longest = min(longest + limits.max_draft_len, shape.max_positions)
    arguments = [
        *("--max_batch_size", str(limits.max_requests)),
        *("--max_seq_len", str(longest)),
        *("--max_num_tokens", str(options.max_num_tokens)),
        *("--max_beam_width", "1"),
        *("--kv_cache_type", "paged"),
        *("--tokens_per_block", str(spec.tokens_per_block)),
        *("--logits_dtype", "float32"),
        *("--gpt_attention_plugin", spec.dtype),
        *("--gemm_plugin", _gemm_plugin(spec, role)),
        *("--context_fmha", "enable"),
        *("--remove_input_padding", "enable"),
        *("--use_paged_context_fmha", "enable"),
        *("--multiple_profiles", _switch(options.multiple_profiles)),
    ]
    if part.weights == "fp8":
        # With paged context attention the FP8 kernels want an FP8 KV cache.
        arguments += ["--use_fp8_context_fmha", _switch(options.kv_cache_dtype == "fp8")]
    if options.reduce_fusion and part.tensor_parallel > 1 and shape.architecture == "LlamaForCausalLM":
        arguments += ["--reduce_fusion", "enable"]
    if verifies:
        arguments += ["--speculative_decoding_mode", "draft_tokens_external"]
        arguments += ["--max_draft_len", str(limits.max_draft_len)]
    if role == "draft" and spec.draft.sampling == "q":
        # Said to be deprecated, but the Triton backend never sets the runtime option that replaces it.
        arguments += ["--gather_generation_logits"]
    arguments += [WORKERS, str(_workers(spec, role))]
    return tuple(arguments)


def convert_command(python: str, script: Path, arguments: tuple[str, ...], paths: EnginePaths) -> list[str]:
    folders = ["--model_dir", str(paths.source), "--output_dir", str(paths.checkpoint)]
    return [python, str(script), *folders, *arguments]


def build_command(program: str, arguments: tuple[str, ...], paths: EnginePaths) -> list[str]:
    folders = ["--checkpoint_dir", str(paths.checkpoint), "--output_dir", str(paths.engine)]
    cache = ["--input_timing_cache", str(paths.timing_cache), "--output_timing_cache", str(paths.timing_cache)]
    return [program, *folders, *arguments, *cache]


def without_workers(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """What the result depends on: not how many ranks were made at once."""
    where = arguments.index(WORKERS) if WORKERS in arguments else len(arguments)
    return arguments[:where] + arguments[where + 2 :]


def shown(command: list[str]) -> str:
    """As a shell takes it, one option a line."""
    lines: list[list[str]] = [[]]
    for word in command:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(shlex.join(line) for line in lines)


def _gemm_plugin(spec: DeploymentSpec, role: Role) -> str:
    """On for 16-bit and weight-only products, off for FP8: TensorRT-LLM's tuning guide."""
    chosen = spec.tensorrt_llm.gemm_plugin
    weights = spec.step_model(role).weights
    if chosen is None or (chosen == "fp8" and weights != "fp8"):
        return "disable" if weights == "fp8" else "auto"
    return chosen


def _workers(spec: DeploymentSpec, role: Role) -> int:
    world = spec.step_model(role).world_size
    return min(spec.tensorrt_llm.workers or world, world)


def _switch(on: bool) -> str:
    return "enable" if on else "disable"
