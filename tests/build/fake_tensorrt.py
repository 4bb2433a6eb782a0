"""A TensorRT-LLM installation of small programs: they take the flags of 1.2 and write what the real ones write.

`trtllm-build` writes config.json and rank*.engine, the conversion scripts config.json and rank*.safetensors.
`FAKE_CALLS` names a file that takes a line per run; `FAKE_FAIL` holds the beginning of a program's name and a role:
that run fails half-way, as after hours.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

_COMMON = """
import argparse, json, os, sys
from pathlib import Path

def log(name, folder):
    role = Path(folder).parent.name if Path(folder).name == "engine" else Path(folder).name
    role = role.strip(".").removesuffix(".partial")
    with open(os.environ["FAKE_CALLS"], "a") as stream:
        stream.write(name + " " + role + "\\n")
    print("working on", role, flush=True)
    fail = os.environ.get("FAKE_FAIL", "").split(":")
    if len(fail) == 2 and name.startswith(fail[0]) and role == fail[1]:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "rank0.engine").write_text("half")
        print("RuntimeError: planted failure", file=sys.stderr)
        sys.exit(3)
"""

_CONVERT = """
parser = argparse.ArgumentParser()
parser.add_argument("--model_dir")
parser.add_argument("--output_dir")
parser.add_argument("--dtype", default="auto", choices=["auto", "float16", "bfloat16", "float32"])
parser.add_argument("--tp_size", type=int, default=1)
parser.add_argument("--pp_size", type=int, default=1)
if "quantize" in sys.argv[0]:
    parser.add_argument("--qformat", choices=["fp8", "int4_awq", "full_prec"])
    parser.add_argument("--kv_cache_dtype", choices=["int8", "fp8", None])
    parser.add_argument("--calib_size", type=int)
else:
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--use_weight_only", action="store_true")
    parser.add_argument("--weight_only_precision", choices=["int8", "int4", "int4_gptq"])
args = parser.parse_args()
log("convert", args.output_dir)
source = json.loads((Path(args.model_dir) / "config.json").read_text())
weights = (Path(args.model_dir) / "model.safetensors").read_bytes()
header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
assert "model.embed_tokens.weight" in header, "a converter needs the embedding"
out = Path(args.output_dir)
quantization = "FP8" if getattr(args, "qformat", None) == "fp8" else None
if getattr(args, "use_weight_only", False):
    quantization = {"int8": "W8A16", "int4": "W4A16"}[args.weight_only_precision]
(out / "config.json").write_text(json.dumps({
    "architecture": source["architectures"][0], "dtype": args.dtype, "vocab_size": source["vocab_size"],
    "num_hidden_layers": source["num_hidden_layers"], "quantization": {"quant_algo": quantization},
    "mapping": {"world_size": args.tp_size * args.pp_size, "tp_size": args.tp_size, "pp_size": args.pp_size}}))
for rank in range(args.tp_size * args.pp_size):
    (out / f"rank{rank}.safetensors").write_bytes(b"weights")
"""

_BUILD = """
switch = {"choices": ["enable", "disable"]}
parser = argparse.ArgumentParser()
for name in os.environ.get("FAKE_FLAGS", "checkpoint_dir output_dir input_timing_cache output_timing_cache").split():
    parser.add_argument("--" + name)
for name in ("max_batch_size", "max_seq_len", "max_num_tokens", "max_beam_width", "tokens_per_block", "max_draft_len",
             "workers"):
    parser.add_argument("--" + name, type=int, default=0)
parser.add_argument("--kv_cache_type", type=str.upper)
plugins = ["auto", "float16", "float32", "bfloat16", "fp8", "disable"]
parser.add_argument("--gpt_attention_plugin", choices=plugins)
parser.add_argument("--gemm_plugin", choices=plugins)
for name in ("context_fmha", "remove_input_padding", "use_paged_context_fmha", "multiple_profiles",
             "use_fp8_context_fmha", "reduce_fusion"):
    if name not in os.environ.get("FAKE_WITHOUT", ""):
        parser.add_argument("--" + name, **switch)
parser.add_argument("--speculative_decoding_mode", choices=["draft_tokens_external", "medusa", "eagle"])
parser.add_argument("--gather_generation_logits", action="store_true")
parser.add_argument("--logits_dtype", choices=["float16", "float32"])
args = parser.parse_args()
log("build", args.output_dir)
model = json.loads((Path(args.checkpoint_dir) / "config.json").read_text())
model["logits_dtype"] = args.logits_dtype
external = args.speculative_decoding_mode == "draft_tokens_external"
out = Path(args.output_dir)
(out / "config.json").write_text(json.dumps({
    "version": os.environ.get("FAKE_VERSION", "1.2.1"), "pretrained_config": model, "build_config": {
        "max_seq_len": args.max_seq_len + args.max_draft_len, "max_batch_size": args.max_batch_size,
        "max_num_tokens": args.max_num_tokens, "max_beam_width": args.max_beam_width,
        "max_draft_len": args.max_draft_len, "kv_cache_type": args.kv_cache_type,
        "speculative_decoding_mode": 2 if external else 1, "gather_generation_logits": args.gather_generation_logits,
        "plugin_config": {"tokens_per_block": args.tokens_per_block,
                          "use_paged_context_fmha": args.use_paged_context_fmha == "enable"}}}))
for rank in range(model["mapping"]["world_size"]):
    (out / f"rank{rank}.engine").write_bytes(b"engine" * 1000)
Path(args.output_timing_cache).write_bytes(b"timings")
"""

_SMI = """#!/bin/sh
[ -n "$FAKE_NO_GPU" ] && exit 9
echo "${FAKE_GPU:-NVIDIA H100 80GB HBM3, 9.0}, 580.95.05"
"""


class FakeTensorRT:
    """The installation, on PATH for one test."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        self.examples = folder / "examples"
        self.calls_file = folder / "calls"
        programs, packages = folder / "bin", folder / "packages"
        programs.mkdir(parents=True)
        self._write(programs / "trtllm-build", f"#!{sys.executable}\n{_COMMON}{_BUILD}")
        self._write(programs / "nvidia-smi", _SMI)
        for name in ("models/core/llama/convert_checkpoint.py", "models/core/qwen/convert_checkpoint.py"):
            self._write(self.examples / name, _COMMON + _CONVERT)
        self._write(self.examples / "quantization" / "quantize.py", _COMMON + _CONVERT)
        self.packages = packages
        self.install("1.2.1")
        patch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", f"{packages}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("FAKE_CALLS", str(self.calls_file))

    def install(self, version: str) -> None:
        """Make it another version; 'none' removes the package."""
        for name, number in (("tensorrt_llm", version), ("tensorrt", "10.14.1.48")):
            metadata = self.packages / f"{name}.dist-info" / "METADATA"
            shutil.rmtree(metadata.parent, ignore_errors=True)
            if number != "none":
                self._write(metadata, f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")

    def calls(self) -> list[str]:
        """ "program role" of every run since the last question; questions for --help do not count."""
        found = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        self.calls_file.write_text("")
        return found

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
